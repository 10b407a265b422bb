"""Tokens that are guessed before vLLM computes them, and verified by it."""
