"""Compares the memory plan with what vLLM does on a CPU: ``python -m benchmarks.parts.memory_plan``.

Starts vLLM with the real architectures of small models and random weights. The KV cache is 40% of what the whole
context of a model takes. Compares the longest context that vLLM then finds room for with the planned one.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from daft_vllm import EngineConfig, OfflineEngine
from daft_vllm.model_configs import known_models, resolve_model
from daft_vllm.model_configs.memory import longest_context, sequence_bytes

SHARE = 0.4
BLOCK = 32
DEFAULT = "smollm2-135m,gemma-3-270m,qwen2.5-0.5b,qwen3-0.6b,gemma-3-1b,llama-3.2-1b"


def write_model(name: str, folder: Path) -> str:
    """Write a folder with a model's config, and a tokenizer so that vLLM starts."""
    from transformers import AutoConfig

    tokenizer = Path(resolve_model("smollm2-135m"))
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(tokenizer / file, folder / file)
    AutoConfig.for_model(**copy.deepcopy(dict(known_models()[name].config))).save_pretrained(folder)
    return str(folder)


def main(
    models: Annotated[str, typer.Option(help="Short names, with commas; their weights have to fit.")] = DEFAULT,
) -> None:
    """Print a table."""
    typer.echo("| model | cache, MiB | longest context, vLLM | planned | planned over vLLM's |")
    typer.echo("|---|---|---|---|---|")
    for name in models.split(","):
        architecture = known_models()[name].architecture
        cache = int(SHARE * sequence_bytes(architecture, architecture.max_model_len, block_size=BLOCK))
        with tempfile.TemporaryDirectory() as folder:
            args = {"load_format": "dummy", "kv_cache_memory_bytes": cache, "dtype": "bfloat16", "block_size": BLOCK}
            config = EngineConfig(write_model(name, Path(folder)), args, gpus=0)
            with OfflineEngine(config, check_chat_template=False) as engine:
                batched = engine._state.core.llm.vllm_config.scheduler_config.max_num_batched_tokens
                context = engine.max_model_len
        planned = longest_context(cache, architecture, block_size=BLOCK, batched_tokens=batched)
        typer.echo(f"| {name} | {cache >> 20} | {context} | {planned} | {planned / context:.3f} |")


if __name__ == "__main__":
    typer.run(main)
