"""Models known by a short name, one TOML file each, and the way from a name to a folder that vLLM can load."""

from daft_vllm.model_configs.registry import ModelConfig, check_known_model, known_folder, known_models, resolve_model

__all__ = ["ModelConfig", "check_known_model", "known_folder", "known_models", "resolve_model"]
