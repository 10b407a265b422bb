"""Turns a return format into a column's type, and a model's text into a value of that type."""
