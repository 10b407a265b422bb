"""The table: daft-vllm beside its peers and an oracle, on deterministic workloads."""
