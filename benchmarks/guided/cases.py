"""Test cases, read from files: a schema, instances that it accepts and refuses, and the results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daft_vllm.udf.answers.return_format import ReturnFormat


@dataclass
class Case:
    """One schema, its instances, and the results."""

    name: str
    schema: Any
    instances: list[Any]
    backend: str | None = None
    refused: str | None = None
    valid_accepted: int = 0
    invalid_refused: int = 0
    valid_refused: list[str] = field(default_factory=list)
    unnamed_keys: list[str] = field(default_factory=list)
    invalid_accepted: list[str] = field(default_factory=list)
    texts: int = 0
    wrong_texts: list[str] = field(default_factory=list)
    values: int = 0
    cut_off: int = 0
    unanswered: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def keywords(self) -> str:
        """The keywords that the message of a refusal names."""
        named = re.findall(r"^\s*/\S*: (\S+): ", self.refused or "", re.MULTILINE)
        return " ".join(dict.fromkeys(named)) or "whole schema"

    @property
    def reason(self) -> str:
        """The first line of a refusal that says where in the schema and why."""
        lines = (self.refused or "").splitlines()
        return (lines[1] if len(lines) > 1 else lines[0]).strip() if lines else ""


def read_cases(folder: Path) -> Iterator[Case]:
    """Read every schema under ``folder``, with the instances of its tests."""
    for path in sorted(folder.rglob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        groups = data if isinstance(data, list) else [data]
        for number, group in enumerate(groups):
            name = path.stem if not isinstance(data, list) else f"{path.stem}/{number}"
            yield Case(name, group["schema"], [test["data"] for test in group["tests"]])


def return_format_of(case: Case) -> ReturnFormat | None:
    """Return what ``prompt()`` makes of the schema; None for ``true`` and ``false``, which it doesn't take.

    Raises:
        SchemaError: ``prompt()`` refuses the schema.
    """
    return None if isinstance(case.schema, bool) else ReturnFormat.of(case.schema)
