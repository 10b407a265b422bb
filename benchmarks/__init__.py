"""Benchmarks: deterministic workloads, arms (daft-vllm, its peers and an oracle), a runner, and a report."""
