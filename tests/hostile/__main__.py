"""Measures what hostile cells cost: ``python -m tests.hostile --rows 2000 --hostile 300``.

The same table is answered without hostile cells and with them, by a shrunken Gemma-3 with random weights. Prints the
time of both, the memory at the peak, and the errors by what was hostile.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import daft
from daft import col

from benchmarks import shrunken
from daft_vllm import FileAccess, close_engines, document, image, prompt
from daft_vllm.model_configs import resolve_model
from tests.helpers import code_of, peak_memory
from tests.hostile.servers import hostile_server
from tests.hostile.table import good_rows, hostile_parts, mixed_rows

ARGS = {"load_format": "dummy", "max_model_len": 1024, "kv_cache_memory_bytes": 256 << 20}


def main() -> None:
    """Run both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--hostile", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0, help="FileAccess(max_seconds=...)")
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, hostile_server() as server:
        folder = Path(name)
        model = shrunken.gemma3(resolve_model("smollm2-135m"), folder / "model", tokens=16)
        (folder / "files").mkdir()
        parts = hostile_parts(server, folder / "files")
        good = good_rows(options.rows, folder / "files")
        rows, names = mixed_rows(good, parts, options.hostile)
        answer = prompt(
            [image(col("picture")), document(col("document")), image(col("place")), col("text")],
            model=model,
            gpus=0,
            use_process=False,
            engine_args=ARGS,
            max_tokens=options.max_tokens,
            details=True,
            files=FileAccess([str(folder / "files")], private_network=True, max_seconds=options.seconds),
        )
        _run(good[:64], answer)  # the engine is open
        for what, table in (("good rows only", good), (f"{options.hostile} hostile cells", rows)):
            with peak_memory() as peak:
                started = time.monotonic()
                found = _run(table, answer)
                seconds = time.monotonic() - started
            errors = {i: code for i, row in found.items() if (code := code_of(row)) is not None}
            print(
                f"{what}: {len(found)} ids, {len(found) - len(errors)} answered, {seconds:.1f} s, "
                f"{peak[0] >> 20} MiB above the start"
            )
        print("hostile rows without an error:", Counter(name for i, name in names.items() if i not in errors))
        print("good rows with an error:", {i: found[i]["error"] for i in errors if i not in names})
        print("errors:", Counter(errors.values()))
    close_engines()


def _run(rows: list[dict[str, Any]], answer: daft.Expression) -> dict[int, dict[str, Any]]:
    df = daft.from_pylist([{"id": i, **row} for i, row in enumerate(rows)])
    found = df.select("id", answer.alias("answer")).to_pylist()
    assert sorted(row["id"] for row in found) == list(range(len(rows)))
    return {row["id"]: row["answer"] for row in found}


if __name__ == "__main__":
    main()
