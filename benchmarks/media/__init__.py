"""Benchmarks with images and diagrams."""
