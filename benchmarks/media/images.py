"""Runs many images through one engine: ``python -m benchmarks.media.images``.

Draws images of 64 x 64 to 2048 x 2048 pixels, breaks or removes one in twenty, and asks about each. Prints how many
rows were answered or failed, the peak memory of the driver and of vLLM's core, and when images were loaded and when the
model ran.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import daft
import numpy as np
import psutil
import typer
from daft import col, lit
from PIL import Image

from benchmarks import shrunken
from daft_vllm import EngineConfig, FileAccess, image, prompt
from daft_vllm.model_configs import resolve_model
from daft_vllm.udf.worker.engines import shared_engine

WIDTH = 60
"""Columns of the timeline."""
SAMPLE_SECONDS = 0.1


def draw_images(folder: Path, number: int, seed: int = 0) -> list[str]:
    """Write JPEG files with sides of 64 to 2048 pixels, log-uniform; of every 40 one is broken and one missing."""
    draw = np.random.default_rng(seed)
    paths = []
    for i in range(number):
        path = folder / f"{i}.jpg"
        paths.append(str(path))
        if i % 40 == 1:
            continue
        height, width = (int(side) for side in 2 ** draw.uniform(6, 11, size=2))
        small = draw.integers(0, 255, (height // 32 + 1, width // 32 + 1, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width, height)).save(path, quality=85)
        if i % 40 == 2:
            path.write_bytes(path.read_bytes()[:200])
    return paths


class Watch(threading.Thread):
    """Samples the memory of the processes, and how many images are loaded and steps done."""

    def __init__(self, engine: Any) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self._ended = threading.Event()
        self._processes = [psutil.Process(), *map(psutil.Process, engine.process_ids)]
        self.peaks = [0] * len(self._processes)
        self.samples: list[tuple[float, int, int]] = []

    def run(self) -> None:
        """Sample until the end."""
        started = time.monotonic()
        while not self._ended.wait(SAMPLE_SECONDS):
            stats = self._engine.stats()
            self.samples.append((time.monotonic() - started, stats.media, stats.steps))
            for i, process in enumerate(self._processes):
                self.peaks[i] = max(self.peaks[i], process.memory_info().rss)

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()

    def timeline(self) -> str:
        """Return two lines with marks at the times when images were loaded and when the model made steps."""
        last = self.samples[-1][0]
        lines = []
        for name, place in (("images loaded", 1), ("steps of the model", 2)):
            marks = [" "] * WIDTH
            for before, after in zip(self.samples, self.samples[1:], strict=False):
                if after[place] > before[place]:
                    marks[min(WIDTH - 1, int(after[0] / last * WIDTH))] = "#"
            lines.append(f"{name:>20} |{''.join(marks)}|")
        return "\n".join([*lines, f"{'':>20}  0{last:>{WIDTH - 1}.1f} s"])


def main(
    model: Annotated[str, typer.Option(help="Folder or name. Default: a shrunken Gemma-3 with random weights.")] = "",
    rows: Annotated[int, typer.Option(help="Images.")] = 2000,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 8,
    engine_args: Annotated[str, typer.Option(help="vLLM's engine arguments as JSON.")] = "{}",
    gpus: Annotated[float, typer.Option(help="GPUs of the engine.")] = 0,
) -> None:
    """Ask about every image, and print what it took."""
    args = json.loads(engine_args)
    with tempfile.TemporaryDirectory() as folder:
        if not model:
            model = shrunken.gemma3(resolve_model("smollm2-135m"), Path(folder) / "model", tokens=64)
            args = {"load_format": "dummy", "max_model_len": 1024, "kv_cache_memory_bytes": 1 << 28, **args}
        paths = draw_images(Path(folder), rows)
        engine = shared_engine(EngineConfig(model, args, gpus=gpus), check_chat_template=True)
        watch = Watch(engine)
        df = daft.from_pydict({"id": list(range(rows)), "path": paths})
        answer = prompt(
            [image(col("path")), lit("What is this?")],
            model=model,
            engine_args=args,
            gpus=gpus,
            use_process=False,
            details=True,
            max_tokens=max_tokens,
            ignore_eos=True,
            files=FileAccess(folders=[folder]),
        )
        watch.start()
        started = time.monotonic()
        answered = df.select("id", answer.alias("a")).to_pylist()
        seconds = time.monotonic() - started
        watch.end()
    results = Counter((row["a"]["error"] or "answered").split(":")[0] for row in answered)
    typer.echo(f"{len({row['id'] for row in answered})} ids out of {rows}: {dict(results)}")
    assert all((row["a"]["value"] is None) == (row["a"]["error"] is not None) for row in answered)
    typer.echo(f"{seconds:.1f} s, {rows / seconds:.1f} rows/s")
    for name, peak in zip(("driver", *["vLLM"] * len(watch.peaks)), watch.peaks, strict=False):
        typer.echo(f"peak memory of {name}: {peak / 2**30:.2f} GiB")
    typer.echo(watch.timeline())


if __name__ == "__main__":
    typer.run(main)
