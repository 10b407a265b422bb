"""The sizes that shrunken models have in common, and the function that writes the folder of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}
SMALL_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def write_model_folder(folder: Path, config: Any, processor: Any, tokenizer: Any) -> str:
    """Write a model's folder, all but its weights, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    saved = folder / "tokenizer_config.json"
    data = json.loads(saved.read_text(encoding="utf-8"))
    data.pop("tokenizer_file", None)
    saved.write_text(json.dumps(data), encoding="utf-8")
    return str(folder)
