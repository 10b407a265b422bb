"""What is in `docker/`: the files, their images, and the command lines of daft-vllm in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
REGISTRY = "registry.example.com/daft-vllm"
"""The name of the image in every file; a user puts their own in its place."""
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text(name)))


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with what follows them, on one line each, without comments."""
    lines = "\n".join(line for line in text(name).splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def command_lines() -> dict[str, list[list[str]]]:
    """For each file, the arguments of daft-vllm in it, beginning with the name of the command."""
    (job,), (rayjob,), (sky,) = (documents(name) for name in ("job.yaml", "rayjob.yaml", "skypilot.yaml"))
    found = {
        "job.yaml": [job["spec"]["template"]["spec"]["containers"][0]["args"]],
        "rayjob.yaml": list(_after(rayjob["spec"]["entrypoint"])),
        "skypilot.yaml": list(_after(sky["run"])),
        "slurm.sh": list(_after(text("slurm.sh"))),
        "README.md": [],
    }
    for block in re.findall(r"^```\n(.*?)^```$", text("README.md"), re.M | re.S):
        for line in _lines(block):
            inner = re.search(r"'(RAY_ADDRESS=auto .*)'$", line)  # the command that `ray exec` gets
            found["README.md"] += _after(inner[1] if inner else line)
    return found


def _lines(script: str) -> list[str]:
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines() if line.strip()]


def _after(script: str) -> Iterator[list[str]]:
    """What follows ``daft-vllm`` where it is called, and what follows the image in ``docker run``."""
    for line in _lines(script):
        words = shlex.split(line, comments=True)
        while words and words[-1] == "&":
            words.pop()
        for at, word in enumerate(words):
            is_image = (
                "docker" in words[:at] and "run" in words[:at] and (word.startswith(REGISTRY) or word == "$IMAGE")
            )
            is_cpu_image = word == "daft-vllm-cpu" and words[:2] == ["docker", "run"]
            is_program = word == "daft-vllm" and words[0] in ("daft-vllm", "srun", "RAY_ADDRESS=auto")
            if is_image or is_cpu_image or is_program:
                yield words[at + 1 :]
                break
