"""Measures single parts of the engine."""
