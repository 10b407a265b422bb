"""Faults, planned by a seed, on real jobs with a store: what happens then, and what is left."""
