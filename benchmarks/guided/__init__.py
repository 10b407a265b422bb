"""Constrained answers: whether formats are enforced, what that costs, and whether describing them helps the model."""
