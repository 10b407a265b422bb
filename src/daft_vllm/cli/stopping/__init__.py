"""What ``daft-vllm run`` does if it ends early: its store, and signals."""
