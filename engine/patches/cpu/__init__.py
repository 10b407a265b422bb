"""Changes of vLLM that only engines on a CPU need."""
