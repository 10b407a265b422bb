"""The workloads: how many tokens the rows share, how many are their own, and how much they write.

Every (workload, rows, seed) has its own random texts, so that no run finds another run's texts in the prefix cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.suite.job import Job
from benchmarks.suite.table import TEMPLATE, metadata_table, render
from benchmarks.suite.vocabulary import Vocabulary

PRESSURE_SHARED = 512
PRESSURE_ROWS_PER_PREFIX = 4

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        # A pattern with its own bound in place of maxLength: xgrammar refuses the two together.
        "name": {"type": "string", "pattern": "^[a-z]{1,12}$"},
        "kind": {"enum": ["animal", "plant", "mineral", "other"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 9},
        "flag": {"type": "boolean"},
    },
    "required": ["name", "kind", "score", "flag"],
    "additionalProperties": False,
}

_Maker = Callable[[Vocabulary, random.Random, int, str], Job]
_makers: dict[str, _Maker] = {}


def make_job(workload: str, rows: int, seed: str, vocabulary: Vocabulary) -> Job:
    """Return the job of ``rows`` rows; the same arguments give the same job.

    Raises:
        KeyError: there is no such workload.
    """
    if rows < 1:
        raise ValueError(f"a job has at least one row, got {rows}")
    rng = random.Random(f"{workload}/{rows}/{seed}")
    return _makers[workload](vocabulary, rng, rows, seed)


def workload_names() -> list[str]:
    """Return the names of all workloads that ``make_job`` knows."""
    return list(_makers)


def _workload(maker: _Maker) -> _Maker:
    _makers[maker.__name__.removeprefix("_")] = maker
    return maker


def _sharing(
    vocabulary: Vocabulary, rng: random.Random, rows: int, *, shared: int, own: int, rows_per_prefix: int
) -> list[str]:
    """Return shuffled prompts; each ``rows_per_prefix`` of them begin with the same ``shared`` tokens."""
    prefixes = [vocabulary.text(shared, rng) for _ in range(-(-rows // rows_per_prefix))]
    prompts = [prefixes[row // rows_per_prefix] + vocabulary.text(own, rng) for row in range(rows)]
    rng.shuffle(prompts)
    return prompts


@_workload
def _blog(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    prompts = _sharing(vocabulary, rng, rows, shared=256, own=256, rows_per_prefix=8)
    return Job("blog", seed, tuple(prompts), max_tokens=64)


@_workload
def _instructions(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    prompts = _sharing(vocabulary, rng, rows, shared=1024, own=64, rows_per_prefix=32)
    return Job("instructions", seed, tuple(prompts), max_tokens=8)


@_workload
def _pressure(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    prompts = _sharing(vocabulary, rng, rows, shared=PRESSURE_SHARED, own=64, rows_per_prefix=PRESSURE_ROWS_PER_PREFIX)
    return Job("pressure", seed, tuple(prompts), max_tokens=16)


@_workload
def _nosharing(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    return Job("nosharing", seed, tuple(vocabulary.text(256, rng) for _ in range(rows)), max_tokens=32)


@_workload
def _skewed(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    prompts = _sharing(vocabulary, rng, rows, shared=128, own=64, rows_per_prefix=16)
    limits = [256 if row % 16 == 0 else 8 for row in range(rows)]
    rng.shuffle(limits)
    return Job("skewed", seed, tuple(prompts), max_tokens=tuple(limits))


@_workload
def _nested(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    outer = [vocabulary.text(256, rng) for _ in range(-(-rows // 32))]
    inner = [vocabulary.text(256, rng) for _ in range(-(-rows // 8))]
    prompts = [outer[row // 32] + inner[row // 8] + vocabulary.text(64, rng) for row in range(rows)]
    rng.shuffle(prompts)
    return Job("nested", seed, tuple(prompts), max_tokens=8)


@_workload
def _guided(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    prompts = _sharing(vocabulary, rng, rows, shared=128, own=64, rows_per_prefix=16)
    return Job("guided", seed, tuple(prompts), max_tokens=64, ignore_eos=False, schema=SCHEMA)


@_workload
def _tiny(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    return Job("tiny", seed, tuple(vocabulary.text(8, rng) for _ in range(rows)), max_tokens=1)


@_workload
def _table(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    table = metadata_table(rows, rng)
    # Words of this seed come first in every row, so that the long fields of one run are no cache hits in another.
    template = f"Survey{vocabulary.text(8, rng)}.\n{TEMPLATE}"
    return Job("table", seed, tuple(render(table, template)), max_tokens=8, table=table, template=template)


# Answers are as long as the prompts: a prefix cache saves a copy's prompt already, so with short answers little more
# could be saved.
@_workload
def _duplicates(vocabulary: Vocabulary, rng: random.Random, rows: int, seed: str) -> Job:
    copies = round(0.3 * rows)
    prompts = [vocabulary.text(64, rng) for _ in range(rows - copies)]
    prompts += [rng.choice(prompts[: rows - copies]) for _ in range(copies)]
    rng.shuffle(prompts)
    return Job("duplicates", seed, tuple(prompts), max_tokens=64)
