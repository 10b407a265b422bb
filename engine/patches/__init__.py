"""Everything that is changed in vLLM. The list of it is in ``entries.py``."""
