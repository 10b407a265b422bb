"""Writes the results of ``benchmarks.media.ai2d`` as one HTML page."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

QUADRANTS = {
    "both right": "the text alone may be enough",
    "image helped": "right because of the image",
    "image hurt": "wrong because of the image",
    "both wrong": "hard, or beyond the model",
}
_PICTURES = 12
_PAGE = Path(__file__).with_name("ai2d_report.html")


class Pass(NamedTuple):
    """One run over all questions."""

    name: str
    seconds: float


class Rate(NamedTuple):
    """How many were right; ``low`` and ``high`` bound the rate with 95% confidence (Wilson's interval)."""

    asked: int
    right: int
    failed: int
    rate: float
    low: float
    high: float


class Speed(NamedTuple):
    """What a pass took; ``cached``: the share of the prompt tokens that came from the prefix cache."""

    name: str
    seconds: float
    rows_per_second: float
    prompt_tokens: int
    cached: float
    cost: str


def wilson(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """Return the bounds of a share with 95% confidence."""
    if not asked:
        return 0.0, 1.0
    share = right / asked
    middle = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked)) / (1 + z * z / asked)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(helped: int, hurt: int) -> float:
    """Return the probability of a split at least so uneven if both kinds are equally likely: exact, two-sided."""
    changed = helped + hurt
    tail = sum(math.comb(changed, k) for k in range(min(helped, hurt) + 1))
    return min(1.0, 2 * tail / 2**changed)


@dataclass
class Report:
    """What the page shows.

    Args:
        rows: as ``ai2d.evaluate`` returns them.
        passes: with the images and without.
        model: the model's name.
        engines: how many engines ran.
        dollars_per_hour: what one engine's machine costs; 0: not known.
        note: a text for the top of the page.
    """

    rows: Sequence[Mapping[str, Any]]
    passes: tuple[Pass, Pass]
    model: str
    engines: int = 1
    dollars_per_hour: float = 0.0
    note: str = ""
    quadrants: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.left_out = Counter(row["problem"] for row in self.rows if row["problem"] is not None)
        self._asked = [row for row in self.rows if row["problem"] is None]
        self.asked = len(self._asked)
        self.quadrants = Counter(row["quadrant"] for row in self._asked)
        self.rates = {"with the image": self._rate("seen"), "without": self._rate("blind")}
        self.chance = sum(1 / len(row["letters"]) for row in self._asked) / max(1, self.asked)
        self.changed = self.quadrants["image helped"] + self.quadrants["image hurt"]
        self.p_value = mcnemar(self.quadrants["image helped"], self.quadrants["image hurt"])
        self.errors = Counter(row["seen"]["error"].split(":")[0] for row in self._asked if row["seen"]["error"])

    @property
    def subsets(self) -> dict[str, tuple[int, float, float]]:
        """Each subset's number of questions, and the share of right answers with the image and without."""
        found = {}
        for name in dict.fromkeys(row["subset"] for row in self._asked):
            rows = [row for row in self._asked if row["subset"] == name]
            rates = (
                sum(row[which]["value"] == row["answer"] for row in rows) / len(rows) for which in ("seen", "blind")
            )
            found[name] = (len(rows), *rates)
        return found  # type: ignore[return-value]

    @property
    def speeds(self) -> list[Speed]:
        """What both passes took."""
        return [self._speed(*one) for one in zip(self.passes, ("seen", "blind"), strict=True)]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Some of the rows that were wrong with the image. Rows that the image hurt come first."""
        wrong = [row for row in self._asked if row["quadrant"] in ("image hurt", "both wrong")]
        wrong.sort(key=lambda row: (row["quadrant"] != "image hurt", row["picture"] is None))
        return [
            {
                **{name: row[name] for name in ("id", "question", "answer", "quadrant")},
                "seen": row["seen"]["value"],
                "blind": row["blind"]["value"],
                "error": row["seen"]["error"],
                "picture": base64.b64encode(row["picture"]).decode() if row["picture"] else None,
            }
            for row in wrong[:_PICTURES]
        ]

    def _rate(self, which: str) -> Rate:
        right = sum(row[which]["value"] == row["answer"] for row in self._asked)
        failed = sum(row[which]["value"] is None for row in self._asked)
        return Rate(self.asked, right, failed, right / max(1, self.asked), *wilson(right, self.asked))

    def _speed(self, one: Pass, which: str) -> Speed:
        prompt = sum(row[which]["prompt_tokens"] for row in self._asked)
        cached = sum(row[which]["cached_tokens"] for row in self._asked)
        hours = one.seconds / 3600 * self.engines
        per_thousand = 1000 * hours * self.dollars_per_hour / max(1, self.asked)
        cost = f"${per_thousand:.4f} per 1,000" if self.dollars_per_hour else f"{hours:.3f} engine hours"
        return Speed(f"{one.name} images", one.seconds, self.asked / one.seconds, prompt, cached / max(1, prompt), cost)

    def summary(self) -> dict[str, Any]:
        """Return the figures as a dictionary, for JSON."""
        return {
            "model": self.model,
            "note": self.note,
            "questions": self.asked,
            "not_asked": dict(self.left_out),
            "rates": {name: rate._asdict() for name, rate in self.rates.items()},
            "chance": self.chance,
            "quadrants": {name: self.quadrants[name] for name in QUADRANTS},
            "mcnemar_p": self.p_value,
            "subsets": {name: list(values) for name, values in self.subsets.items()},
            "passes": [speed._asdict() for speed in self.speeds],
            "errors": dict(self.errors),
        }

    def text(self) -> str:
        """Return the figures, for a terminal."""
        lines = [self.note] if self.note else []
        lines += [f"{n} questions not asked: {why}" for why, n in self.left_out.items()]
        lines += [
            f"{name:>15}: {rate.right} of {rate.asked} right ({rate.rate:.1%}, {rate.low:.1%}..{rate.high:.1%}), "
            f"{rate.failed} without answer"
            for name, rate in self.rates.items()
        ]
        lines += [f"{name:>15}: {self.quadrants[name]} ({meaning})" for name, meaning in QUADRANTS.items()]
        lines += [
            f"{speed.name:>15}: {speed.seconds:.1f} s, {speed.rows_per_second:.1f} questions/s, {speed.prompt_tokens} "
            f"prompt tokens, {speed.cached:.0%} of them from the cache, {speed.cost}"
            for speed in self.speeds
        ]
        return "\n".join(lines)


def write_report(report: Report, folder: Path) -> None:
    """Write ``report.html`` and ``summary.json``; texts from the data are escaped."""
    from jinja2 import Environment

    page = Environment(autoescape=True).from_string(_PAGE.read_text(encoding="utf-8")).render(r=report)
    (folder / "report.html").write_text(page, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(report.summary(), indent=2), encoding="utf-8")
