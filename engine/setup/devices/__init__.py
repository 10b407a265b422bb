"""The devices of this machine: which there are, which are free, and what the installed vLLM is built for."""
