"""What is in a model's folder: which files are there, which of them vLLM reads, and which may hold code."""
