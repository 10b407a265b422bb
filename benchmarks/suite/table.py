"""A real table with repeated values: the metadata of the installed Python packages."""

from __future__ import annotations

import functools
import importlib.metadata
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

ROWS_PER_PACKAGE = 16
DESCRIPTION_CHARACTERS = 600
CLASSIFIERS = 8

# The field that differs from row to row comes first, as people tend to write it: in this order nothing is shared.
TEMPLATE = (
    "{kind}: {subject}\n"
    "Package: {name} {version}\n"
    "Author: {author}\n"
    "License: {license}\n"
    "Summary: {summary}\n"
    "Description: {description}\n"
    "Classifiers: {classifiers}\n"
    "Question: what does the package need this for?\n"
    "Answer:"
)


def metadata_table(rows: int, rng: random.Random) -> pa.Table:
    """Return ``rows`` rows, shuffled: one per requirement or file of randomly chosen packages.

    A package gives ``ROWS_PER_PACKAGE`` rows at most. Once every package has been used, each gives its next rows. The
    same installed packages give the same table.

    Raises:
        ValueError: the installed packages have fewer requirements and files than ``rows``.
    """
    packages = list(_packages())
    rng.shuffle(packages)
    found: list[dict[str, str]] = []
    start = 0
    while len(found) < rows:
        before = len(found)
        for fields, subjects in packages:
            for kind, subject in subjects[start : start + ROWS_PER_PACKAGE]:
                found.append({"kind": kind, "subject": subject, **fields})
            if len(found) >= rows:
                break
        if len(found) == before:
            raise ValueError(f"the installed packages give {before} rows, not {rows}")
        start += ROWS_PER_PACKAGE
    found = found[:rows]
    rng.shuffle(found)
    return pa.Table.from_pylist(found)


def render(table: pa.Table, template: str) -> list[str]:
    """Return the rows of ``table`` as text, fields in the template's order."""
    return [template.format(**row) for row in table.to_pylist()]


@functools.cache
def _packages() -> tuple[tuple[dict[str, str], list[tuple[str, str]]], ...]:
    return tuple(_read_packages())


def _read_packages() -> Iterator[tuple[dict[str, str], list[tuple[str, str]]]]:
    seen = set()
    for distribution in sorted(importlib.metadata.distributions(), key=lambda d: (d.name or "").lower()):
        name = distribution.name
        if not name or name in seen:
            continue
        seen.add(name)
        metadata: Any = distribution.metadata  # an email.message.Message; typeshed's protocol has no get()
        description = metadata.get("Description") or str(metadata.get_payload() or "")
        fields = {
            "name": name,
            "version": distribution.version,
            "author": _one_line(metadata.get("Author") or metadata.get("Author-email") or "unknown")[:80],
            "license": _one_line(metadata.get("License-Expression") or metadata.get("License") or "unknown")[:80],
            "summary": _one_line(metadata.get("Summary") or ""),
            "description": _one_line(description)[:DESCRIPTION_CHARACTERS],
            "classifiers": "; ".join((metadata.get_all("Classifier") or [])[:CLASSIFIERS]),
        }
        subjects = [("Requirement", _one_line(text)) for text in distribution.requires or []]
        subjects += [("File", str(path)) for path in sorted(distribution.files or []) if path.suffix == ".py"]
        if subjects:
            yield fields, subjects


def _one_line(text: str) -> str:
    return " ".join(text.split())
