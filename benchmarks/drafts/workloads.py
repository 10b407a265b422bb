"""Tables whose answers repeat more or less of each other and of their prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

_TEXT = "red blue green time house river stone paper light table chair music water field cloud glass"
WORDS = _TEXT.split()
_PEOPLE = ["Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack", "Karen", "Louis"]
_NAMES = ["Smithson", "Johanson", "Williams", "Brownfield", "Millerton", "Davidson", "Garcia", "Robertson"]
_STREETS = ("Maple Avenue", "Oak Street", "River Road", "Highland Drive", "Station Lane", "Mill Hill")
_CITIES = ["Springfield", "Riverside", "Georgetown", "Greenville", "Madison", "Clinton", "Fairview"]

WORKLOADS = ("form", "wide", "extract", "labels", "free")
"""``form``: 12 keys with short values. ``wide``: 40 keys. ``extract``: values copied from the prompt. ``labels``: one
of five words. ``free``: text."""


class Workload(NamedTuple):
    """Prompts, and what their answers have to satisfy.

    Attributes:
        prompts: of the rows.
        schema: JSON Schema of the answers. None: there is none.
        choices: the only answers. Empty: all.
        max_tokens: of an answer.
    """

    prompts: list[str]
    schema: dict[str, Any] | None
    choices: tuple[str, ...]
    max_tokens: int

    @property
    def ignore_eos(self) -> bool:
        """Whether all answers have ``max_tokens`` tokens."""
        return self.schema is None and not self.choices


def make_workload(name: str, rows: int, seed: int) -> Workload:
    """Return a workload. The same seed makes the same rows.

    Args:
        name: one of ``WORKLOADS``.
        rows: how many.
        seed: of the random parts of the prompts.
    """
    rng = random.Random(f"{name}-{seed}")
    if name == "free":
        return Workload([f"Write a story about a {_words(rng, 3)}." for _ in range(rows)], None, (), 64)
    if name == "extract":
        return Workload([_letter(rng) for _ in range(rows)], _object(_EXTRACTED), (), 160)
    review = [f"Review: {_words(rng, 30)}\n\nThe review as JSON: " for _ in range(rows)]
    if name == "labels":
        labels = ("electronics", "clothing", "groceries", "furniture", "toys")
        return Workload([f"{one[:-9]}in one word: " for one in review], None, labels, 8)
    return Workload(review, _object(_FORM if name == "form" else _WIDE), (), 900)


def as_text(schema: dict[str, Any]) -> str:
    """Return a schema as JSON text."""
    return json.dumps(schema)


_FORM: dict[str, Any] = {
    "product_category": {"enum": ["electronics", "clothing", "groceries", "furniture", "toys"]},
    "is_recommended": {"type": "boolean"},
    "overall_sentiment": {"enum": ["positive", "negative", "neutral"]},
    "mentions_delivery": {"type": "boolean"},
    "rating": {"type": "integer", "minimum": 1, "maximum": 5},
    "color": {"enum": ["red", "blue", "green", "other"]},
    "quality": {"enum": ["good", "bad", "average"]},
    "price_level": {"enum": ["low", "medium", "high"]},
    "would_buy_again": {"type": "boolean"},
    "number_of_items": {"type": "integer", "minimum": 0, "maximum": 99},
    "size": {"enum": ["small", "medium", "large"]},
    "summary": {"type": "string", "maxLength": 24},
}
_KINDS: tuple[dict[str, Any], ...] = (
    {"type": "boolean"},
    {"enum": ["yes", "no", "unknown"]},
    {"type": "integer", "minimum": 0, "maximum": 9},
    {"enum": ["low", "medium", "high"]},
)
_WIDE = {f"{WORDS[i % 16]}_{WORDS[(i * 7 + 3) % 16]}_{i}": _KINDS[i % 4] for i in range(40)}
_EXTRACTED: dict[str, Any] = {
    name: {"type": "string", "maxLength": 40} for name in ("customer", "street", "city", "order", "message")
}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _words(rng: random.Random, number: int) -> str:
    return " ".join(rng.choices(WORDS, k=number))


def _letter(rng: random.Random) -> str:
    example = _fields(rng)
    asked = _fields(rng)
    return f"{_lines(example)}\nJSON: {json.dumps(dict(example))}\n\n{_lines(asked)}\nJSON: "


def _lines(fields: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in fields)


def _fields(rng: random.Random) -> list[tuple[str, str]]:
    return [
        ("customer", f"{rng.choice(_PEOPLE)} {rng.choice(_NAMES)}"),
        ("street", f"{rng.randrange(1, 99)} {rng.choice(_STREETS)}"),
        ("city", rng.choice(_CITIES)),
        ("order", f"A{rng.randrange(10000, 99999)}"),
        ("message", f"the {_words(rng, 2)} is broken"),
    ]
