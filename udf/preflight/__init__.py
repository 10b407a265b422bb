"""Checks that find what is wrong with a model before it is loaded."""
