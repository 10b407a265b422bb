"""The same script, and the same command, on this machine and on a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.udf.ray.conftest import Run

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
import daft
from daft import col
from daft_vllm import prompt

asked = ["What is the capital of France?", "Name a colour.", "1 + 1?", None, "Say hello.", "What is water?"]
df = daft.from_pydict({"id": list(range(6)), "q": asked})
answer = prompt(
    col("q"), model=sys.argv[1], gpus=0, max_tokens=16, details=True,
    engine_args={"max_model_len": 256, "kv_cache_memory_bytes": 128 << 20, "dtype": "float32"},
)
out = df.with_column("a", answer).sort("id").to_pydict()
print(json.dumps([[row["value"], row["finish_reason"], row["completion_tokens"]] for row in out["a"]]))
"""


def test_the_same_script_gives_the_same_answers(cluster: str, run: Run, smollm2: str, tmp_path: Path) -> None:
    """Only ``DAFT_RUNNER`` and ``RAY_ADDRESS`` differ. The command has ``--ray`` in their place."""
    natively, on_ray = (run(SCRIPT, smollm2, address=address, seconds=300) for address in (None, cluster))
    assert natively.returncode == on_ray.returncode == 0, on_ray.stderr[-3000:]
    answers, others = (json.loads(done.stdout.splitlines()[-1]) for done in (natively, on_ray))
    assert answers == others
    assert sum(value is not None for value, *_ in answers) == 5
    table = [{"q": asked} for asked in ("What is the capital of France?", "Name a colour.", "1 + 1?")]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, table)), encoding="utf-8")
    command = [
        "run",
        "--input",
        "t.jsonl",
        "--prompt",
        "{q}",
        "--output",
        "a.jsonl",
        "--ray",
        cluster,
        "--engines",
        "2",
    ]
    command += ["--model", smollm2, "--gpus", "0", "--max-tokens", "16", "--store", str(tmp_path / "store"), "--resume"]
    args = {"max_model_len": 256, "kv_cache_memory_bytes": 128 << 20, "dtype": "float32"}
    done = run(None, *command, "--engine-args", json.dumps(args), seconds=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["q"]: row["answer"] for row in lines} == {
        row["q"]: value for row, (value, *_) in zip(table, answers, strict=False)
    }
