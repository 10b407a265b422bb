"""Hostile cells: texts, files, and servers."""
