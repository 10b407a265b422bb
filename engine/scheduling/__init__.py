"""Which row vLLM is given next, and what became of every row."""
