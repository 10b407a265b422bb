"""Hostile cells of every kind beside good ones, through the public API."""

from __future__ import annotations

import time
from pathlib import Path

import daft
import pytest
from daft import col

from benchmarks import shrunken
from daft_vllm import FileAccess, document, image, prompt
from daft_vllm.engine.media.processes import POOL
from tests.conftest import TINY_ARGS
from tests.helpers import code_of, peak_memory
from tests.hostile.servers import hostile_server
from tests.hostile.table import good_rows, hostile_parts, mixed_rows

pytestmark = pytest.mark.other_engine
MEMORY = 256 << 20


def test_hostile_cells_are_errors_of_their_rows(smollm2: str, tmp_path: Path) -> None:
    model = shrunken.gemma3(smollm2, tmp_path / "model", tokens=16)
    (tmp_path / "files").mkdir()
    access = FileAccess(folders=[tmp_path / "files"], private_network=True, max_seconds=3, max_memory=MEMORY)
    with hostile_server() as server:
        parts = hostile_parts(server, tmp_path / "files")
        good = good_rows(50 + len(parts), tmp_path / "files")
        rows, names = mixed_rows(good, parts, len(parts))
        answer = prompt(
            [image(col("picture")), document(col("document")), image(col("place")), col("text")],
            model=model,
            gpus=0,
            use_process=False,
            engine_args={**TINY_ARGS, "max_model_len": 1024},
            max_tokens=2,
            details=True,
            files=access,
        )
        df = daft.from_pylist([{"id": i, **row} for i, row in enumerate(rows)])
        df.limit(2).select(answer).collect()  # the quiet state: the engine is open
        started = time.monotonic()
        with peak_memory() as peak:
            found = {row["id"]: row["a"] for row in df.select("id", answer.alias("a")).to_pylist()}
        seconds = time.monotonic() - started
    assert sorted(found) == list(range(len(rows)))
    codes = {i: code_of(row) for i, row in found.items()}
    assert {names[i] for i, code in codes.items() if i in names and code is None} == set(), "hostile, and answered"
    assert {i: code for i, code in codes.items() if i not in names and code is not None} == {}
    assert max(len(row["error"]) for row in found.values() if row["error"]) < 600
    assert peak[0] < 8 * MEMORY, "no more than the decoder processes may take"
    assert seconds < len(parts), "they are read at the same time"
    assert all(decoder.process.poll() is None for decoder in POOL._idle)
