"""Kills a job again and again, and looks at what is left: ``python -m benchmarks.parts.kills``.

The whole job is killed, with all of its processes, at random moments; then it is started again with the same store. The
last start is let alone. It prints how many of its answers differ from those of a job that was never killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import pyarrow.parquet as pq
import typer

from daft_vllm.engine.setup.guardian import kill_processes
from daft_vllm.engine.store.segments import frames_of, segments_of

_SCRIPT = """
import os
import sys
import daft
from daft import col
from daft_vllm import prompt
if __name__ == "__main__":
    rows, model, store, output, temperature = int(sys.argv[1]), *sys.argv[2:5], float(sys.argv[5])
    if os.environ["DAFT_RUNNER"] == "ray":
        import ray
        ray.init(num_cpus=2, log_to_driver=False)  # Daft asks for two, however many cores this process may use
    df = daft.from_pydict({"id": list(range(rows)), "q": [f"Write about {i}." for i in range(rows)]})
    answer = prompt(
        col("q"), model=model, gpus=0, max_tokens=12, ignore_eos=True, temperature=temperature, store=store,
        details=True,
        engine_args={"max_model_len": 256, "kv_cache_memory_bytes": 256 << 20, "dtype": "float32"},
    )
    df.select("id", answer.alias("a")).write_parquet(output, write_mode="overwrite")
"""


def main(
    rows: Annotated[int, typer.Option(min=1)] = 2000,
    kills: Annotated[int, typer.Option(min=0)] = 20,
    seed: Annotated[int, typer.Option()] = 1,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    ray: Annotated[bool, typer.Option("--ray", help="Run the job on Ray.")] = False,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
) -> None:
    """Print what each kill left, and compare the output with that of an undisturbed job."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "job.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        store, output = folder / "store", folder / "output"

        def start(store: Path, output: Path) -> subprocess.Popen[bytes]:
            command = [sys.executable, str(script), str(rows), model, str(store), str(output), str(temperature)]
            # Ray in a folder of its own: else it joins whatever cluster runs on this machine.
            env = {**os.environ, "DAFT_RUNNER": "ray" if ray else "native", "RAY_TMPDIR": name}
            with (folder / "log").open("ab") as log:
                return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

        print("| kill | answers before | answers after | seconds | processes left |\n|---|---|---|---|---|")
        for number in range(kills):
            before = stored(store)
            running = start(store, output)
            started = time.monotonic()
            # Half of the kills come while it loads, half of them anywhere in what it answers.
            if number % 2:
                wanted = before + rng.randrange(1, max(2, 4 * rows // (kills + 1)))
                while running.poll() is None and stored(store) < min(wanted, rows - 1):
                    time.sleep(0.2)
            else:
                time.sleep(rng.uniform(0.5, 20))
            left = _kill(running)
            after = stored(store)
            print(f"| {number + 1} | {before} | {after} | {time.monotonic() - started:.1f} | {left} |", flush=True)
            if after == rows:
                break
        code = start(store, output).wait()
        if code:
            sys.exit(f"the last run ended with {code}: {(folder / 'log').read_text(encoding='utf-8')[-2000:]}")
        found = _answers(output)
        assert sorted(found) == list(range(rows)), "an id is missing, or there twice"
        kept, twice = stored(store), twice_in(store)
        print(f"\n{rows} rows in, {len(found)} out; {kept} answers in the store, {twice} of them twice.")
        if temperature == 0:
            assert start(folder / "other", folder / "undisturbed").wait() == 0
            other = _answers(folder / "undisturbed")
            differing = sum(found[i] != other[i] for i in other)
            print(f"{differing} answers differ from those of a job that nobody disturbed.")


def stored(store: Path) -> int:
    """Return how many answers are in a store that is being written."""
    if not store.is_dir():
        return 0
    return sum(batch.num_rows for path in segments_of(store) for _, batch in frames_of(path))


def twice_in(store: Path) -> int:
    """Return how many answers are in a store although it had one for their row already. Refused rows are no answers."""
    if not store.is_dir():
        return 0
    keys = [
        key
        for path in segments_of(store)
        for _, batch in frames_of(path)
        for key, text in zip(batch["key"].to_pylist(), batch["text"].is_valid().to_pylist(), strict=True)
        if text
    ]
    return len(keys) - len(set(keys))


def _answers(output: Path) -> dict[int, Any]:
    table = pq.read_table(output)
    return dict(zip(table["id"].to_pylist(), (row["value"] for row in table["a"].to_pylist()), strict=True))


def _kill(running: subprocess.Popen[bytes]) -> int:
    """Kill a process and all below it at once. Return how many of them still run a moment later."""
    left = []
    with contextlib.suppress(psutil.NoSuchProcess):
        left = kill_processes([psutil.Process(running.pid)])
    running.wait()
    return sum(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in left)


if __name__ == "__main__":
    typer.run(main)
