"""Daft and nothing of vLLM's internals: columns in, columns out."""
