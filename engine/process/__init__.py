"""The running engine: the thread that drives vLLM, and vLLM's processes."""
