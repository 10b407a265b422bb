"""A worker without an engine: reports made-up runs, and fails as its arm's name asks it to."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.suite.worker import Description


def main() -> None:
    description = Description.load(Path(sys.argv[1]))
    behaviour = json.loads(Path(description.folder, "behaviour.json").read_text(encoding="utf-8")).get(
        description.arm, "works"
    )
    with Path(description.folder, "starts.txt").open("a", encoding="utf-8") as starts:
        starts.write(f"{description.arm} {description.cold}\n")

    def say(event: dict[str, object]) -> None:
        with Path(description.lines).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(event) + "\n")

    if behaviour == "no-load":
        raise RuntimeError("RuntimeError: the model is not there")
    if behaviour == "cannot":
        say({"event": "cannot", "why_not": "needs a GPU"})
        return
    if not description.cold:
        say({"event": "opened", "load_seconds": 1.5})
    for task in description.tasks:
        if behaviour == "dies-at-tiny" and task.workload == "tiny":
            raise RuntimeError("EngineDeadError: out of memory")
        if behaviour == "hangs":
            time.sleep(60)
        if behaviour == "refuses-skewed" and task.workload == "skewed":
            say({"event": "failed", **asdict(task), "why_not": "no max_tokens row by row"})
            continue
        figures = {"seconds": task.rows / 10, "prompt_tokens": 100, "cached_tokens": 40, "mean_running": 3.0}
        say({"event": "ran", **asdict(task), **figures, "load_seconds": None, "peak_rss_mb": 10.0})


if __name__ == "__main__":
    main()
