"""The child processes of a run without an engine: ``fake_child.py set-up|arm|tests ...``.

Each does what ``behaviour.json``, in the folder of the results, says: ``works``, ``hangs`` (with a grandchild that has
left its group), ``hangs after one``, ``breaks``, ``cannot``, or the seconds that each of its workloads takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEVICE = {"name": "Made-up CPU", "card": "", "total": 0, "free": 0, "driver": ""}
MODEL = {"name": "smollm2-135m", "folder": "there", "why": "made up", "parameters": 134_515_008}


def main(kind: str, arguments: list[str]) -> int:
    if kind == "tests":
        lines, folder, name = Path(os.environ["CARD_TEST_LINES"]), None, "tests"
        folder = lines.parents[1]
        task: dict[str, Any] = {}
    else:
        task = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        lines, name = Path(task["lines"]), task.get("arm", "set-up")
        folder = lines.parents[1]
    behaviour = json.loads((folder / "behaviour.json").read_text(encoding="utf-8")).get(name, "works")
    with (folder / "starts.txt").open("a", encoding="utf-8") as starts:
        starts.write(" ".join([name, *(part["workload"] for part in task.get("parts", []))]) + "\n")

    def say(event: dict[str, Any]) -> None:
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def hang() -> None:
        grandchild = [sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"]
        left = subprocess.Popen(["/bin/sh", "-c", '"$@" & echo $!', "sh", *grandchild], stdout=subprocess.PIPE)
        assert left.stdout is not None
        pid = left.stdout.readline().decode().strip()
        with (folder / "orphans.txt").open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {pid}\n")
        time.sleep(600)

    if behaviour == "hangs":
        hang()
    if behaviour == "breaks":
        raise RuntimeError("RuntimeError: it broke")
    if name == "set-up":
        refused = {"refused": "--suite cpu is for another card"}
        found = {"device": DEVICE, "versions": {"python": "3"}, "model": MODEL, "weights": 1, "engine_args": {}}
        say(refused if behaviour == "cannot" else found)
    elif name == "tests":
        deselected = [arguments[i + 1] for i, one in enumerate(arguments) if one == "--deselect"]
        for test, outcome in (
            ("tests/a.py::one", "passed"),
            ("tests/a.py::two", "failed"),
            ("tests/b.py::three", "passed"),
        ):
            if test in deselected:
                continue
            say({"event": "began", "test": test})
            if behaviour == "hangs after one" and test == "tests/a.py::two":
                hang()
            say(
                {
                    "event": "ended",
                    "test": test,
                    "outcome": outcome,
                    "seconds": 0.1,
                    "why": "no" * (outcome == "failed"),
                }
            )
        return 1
    elif behaviour == "cannot":
        say({"event": "cannot", "why_not": "ray is not installed"})
    else:
        say({"event": "opened", "load_seconds": 0.5})
        for part in task["parts"]:
            if part["workload"] == "tiny" and behaviour == "hangs after one":
                hang()
            if isinstance(behaviour, float):
                time.sleep(behaviour)
            rows = part["agreed"] or 2 * part["first"]
            for number in (part["first"], rows):
                figures = {"seconds": number / 10, "prompt_tokens": 100, "cached_tokens": 40, "mean_running": 3.0}
                figures |= {"output_tokens": 64 * number, "steps": 50, "load_seconds": None, "peak_rss_mb": 10.0}
                say({"event": "ran", "workload": part["workload"], "rows": number, "failed_rows": 0, **figures})
            say({"event": "measured", "workload": part["workload"]})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
