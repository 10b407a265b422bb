"""The set-up, in a process that can be killed: ``python -m benchmarks.card.stages.setting_up TASK.json``.

It looks at the device, reads versions and writes the model. What it found is one line of the file that TASK names.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.card.model import choose_model, write_model
from benchmarks.card.stages.device import WrongDevice, find_device
from benchmarks.suite.runner import versions
from benchmarks.suite.suites import suite
from daft_vllm.errors import DaftVLLMError


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Return what was found, or why the benchmark can't run here."""
    chosen = suite(task["suite"], dtype=task["dtype"])
    try:
        device = find_device(chosen)
        model = choose_model(chosen, task["model"])
        folder = write_model(model, Path(task["out"]))
        config = model.config()
    except (WrongDevice, DaftVLLMError, ValueError) as e:
        return {"refused": str(e)}
    return {
        "device": asdict(device),
        "versions": versions(),
        "model": {"name": model.name, "folder": folder, "why": model.why, "parameters": config.parameters},
        "weights": model.weights(),
        "engine_args": {**chosen.engine_args, **model.engine_args},
    }


if __name__ == "__main__":
    described = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = main(described)
    with Path(described["lines"]).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")
