"""Answers held to formats: whether they are, what it costs, and whether it helps to tell the model."""
