"""Checks of the GPU path without a GPU: vLLM for CUDA, on a driver that is made up. ``make gpu-check`` runs them."""
