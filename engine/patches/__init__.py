"""Everything that is changed in vLLM."""
