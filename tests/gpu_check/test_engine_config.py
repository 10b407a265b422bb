"""vLLM takes what daft-vllm passes for each model, on cards from the T4 to the B200."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daft_vllm.errors import ModelError
from daft_vllm.model_configs import known_models
from daft_vllm.model_configs.cards import card_named
from daft_vllm.model_configs.memory import block_tokens
from daft_vllm.model_configs.quantization import LEAST_CAPABILITY
from daft_vllm.udf.preflight.architecture import check_card_type
from daft_vllm.udf.preflight.model import Model
from tests.gpu_check.cards import CARDS, GIB

OLDEST = 60
"""Cards with less than compute capability 6.0 run no vLLM."""


@pytest.mark.parametrize("card", CARDS)
def test_vllm_takes_our_settings(card: str, tmp_path: Path) -> None:
    """All that it refuses, ``daft-vllm check`` refuses before."""
    out = tmp_path / "found.jsonl"
    command = [sys.executable, "-m", "tests.gpu_check.sweep", card, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [one["model"] for one in found] == list(known_models())
    refused = {one["model"]: one["error"] for one in found if "error" in one}
    assert {name: error for name, error in refused.items() if _passes_the_check(name, card)} == {}
    taken = [one for one in found if "error" not in one]
    assert {one["model"] for one in taken if one["tensor parallel"] != one["gpus"]} == set()
    if CARDS[card].capability >= (10, 0):  # there vLLM has other attention kernels, with sizes of their own
        return
    hybrid = {one["model"]: one for one in taken if known_models()[one["model"]].architecture.state_page}
    assert hybrid
    assert {name: one["block"] for name, one in hybrid.items()} == {
        name: block_tokens(known_models()[name].architecture, tensor_parallel=one["gpus"])
        for name, one in hybrid.items()
    }


def _passes_the_check(model: str, card_name: str) -> bool:
    card = card_named(CARDS[card_name].name, int(CARDS[card_name].gib * GIB))
    try:
        check_card_type(Model(model), card.full_name, card.capability)
    except ModelError:
        return False
    return True


def test_the_least_capabilities_are_vllms() -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config

    least = {}
    for name in QUANTIZATION_METHODS:
        number = get_quantization_config(name).get_min_capability()
        if number > OLDEST:
            least[name] = divmod(number, 10)
    assert least == LEAST_CAPABILITY
