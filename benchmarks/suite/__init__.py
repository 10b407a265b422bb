"""Compares daft-vllm with its peers and an oracle on deterministic workloads."""
