"""``daft-vllm tune``: trials of vLLM's settings on rows of the job."""
