"""Whether telling a model the format makes its answers better: ``python -m benchmarks.describing``.

The demo's question, the category of an installed package, for packages whose category is beyond doubt; each variant
puts the same rows through one engine. A count of one small model's right answers: which way it points, not how far.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
from daft_vllm.demo import SYSTEM_MESSAGE, Label, package_table
from daft_vllm.model_configs import resolve_model
from daft_vllm.udf.describe import describe
from daft_vllm.udf.return_format import ReturnFormat

RIGHT = {
    "web": "aiohttp fastapi starlette uvicorn httpx requests urllib3 websockets PyJWT jinja2",
    "network": "aiohttp uvicorn httpx requests urllib3 websockets grpcio pyzmq dnspython certifi",
    "testing": "pytest pytest-cov pytest-timeout coverage ruff mypy",
    "data": "numpy pandas pyarrow daft matplotlib scipy pillow sympy",
    "machine learning": "torch torchvision transformers tokenizers safetensors accelerate xgrammar tiktoken numpy "
    "sentencepiece ray huggingface-hub huggingface_hub llguidance opencv-python-headless",
    "packaging": "setuptools packaging wheel build",
    "security": "cryptography certifi PyJWT",
    "system": "psutil filelock ray ruff",
    "text": "tiktoken sentencepiece regex jinja2 lark xgrammar llguidance tokenizers email-validator",
}
"""Packages by category; some belong to several."""


def main(
    model: Annotated[str, typer.Option(help="Folder or name.")] = "smollm2-135m",
    gpus: Annotated[float, typer.Option(help="GPUs of the engine.")] = 0,
) -> None:
    """Print the right answers with and without a description, with and without a system message."""
    answers: dict[str, set[str]] = {}
    for category, names in RIGHT.items():
        for name in names.lower().split():
            answers.setdefault(name, set()).add(category)
    rows = [row for row in package_table().to_pylist() if row["name"].lower() in answers]
    constraint = ReturnFormat.of(Label).constraint
    assert constraint is not None
    typer.echo(
        f"{len(rows)} packages\n\n| system message | format described | right | taken most often |\n|---|---|---|---|"
    )
    with OfflineEngine(EngineConfig(resolve_model(model), {"max_model_len": 2048}, gpus=gpus)) as engine:
        for system in (SYSTEM_MESSAGE, None):
            for preamble in (None, describe(constraint)):
                requests = [
                    Request(
                        f"Package {row['name']}: {row['summary']}",
                        system_message=system,
                        preamble=preamble,
                        constraint=constraint,
                        sampling=SamplingOptions(max_tokens=128),
                    )
                    for row in rows
                ]
                given = [
                    json.loads(outcome.text or "")["category"] if outcome.error is None else None
                    for outcome in engine.run(requests)
                ]
                right = sum(one in answers[row["name"].lower()] for one, row in zip(given, rows, strict=True))
                most = max(set(given), key=given.count)
                said = ["yes" if text else "no" for text in (system, preamble)]
                typer.echo(f"| {' | '.join(said)} | {right} | {most}, {given.count(most)} |")


if __name__ == "__main__":
    typer.run(main)
