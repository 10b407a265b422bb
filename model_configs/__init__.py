"""Models known by a short name, one TOML file each, and the way from a name to a folder that vLLM can load."""

from daft_vllm.model_configs.derived import count_parameters, derived_config
from daft_vllm.model_configs.registry import (
    ModelConfig,
    Prompting,
    check_known_model,
    config_of,
    known_folder,
    known_models,
    resolve_model,
)

__all__ = [
    "ModelConfig",
    "Prompting",
    "check_known_model",
    "config_of",
    "count_parameters",
    "derived_config",
    "known_folder",
    "known_models",
    "resolve_model",
]
