"""Draws labelled diagrams like AI2D's, with multiple-choice questions and known answers.

They are written in the layout of The Cauldron (see ``benchmarks.media.cauldron``), so that one loader reads both.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFont

SIZE = 448
CYCLES = (
    ("egg", "larva", "pupa", "beetle"),
    ("seed", "sprout", "plant", "flower", "fruit"),
    ("cloud", "rain", "river", "sea", "vapour"),
    ("magma", "lava", "rock", "sand", "slate"),
)
FOOD = (("grass", "leaf", "alga", "berry"), ("hare", "snail", "shrimp", "mouse"), ("fox", "owl", "trout", "snake"))
SHAPES = ("circle", "square", "triangle", "diamond", "star")
COLOURS = ("crimson", "seagreen", "royalblue", "goldenrod", "slategray")
SCHEMA = pa.schema(
    {
        "images": pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "texts": pa.list_(pa.struct({"user": pa.string(), "assistant": pa.string(), "source": pa.string()})),
    }
)
"""The Cauldron's columns, as its Parquet files have them."""
_FONT_SIZE = 24


class Question(NamedTuple):
    """A question about a diagram; the first of the choices is right."""

    text: str
    choices: tuple[str, ...]


class _Page:
    """A white square to draw on."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (SIZE, SIZE), "white")
        self.pen = ImageDraw.Draw(self.image)
        self.font = ImageFont.load_default(_FONT_SIZE)

    def label(self, x: float, y: float, text: str) -> None:
        self.pen.text((x, y), text, fill="black", font=self.font, anchor="mm")

    def shape(self, name: str, x: float, y: float, radius: float, colour: str) -> None:
        if name == "circle":
            self.pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour, outline="black")
            return
        corners = {"square": 4, "diamond": 4, "triangle": 3, "star": 10}[name]
        turn = math.pi / 4 if name == "square" else 0
        points = []
        for i in range(corners):
            length = radius / 2 if name == "star" and i % 2 else radius
            angle = turn - math.pi / 2 + 2 * math.pi * i / corners
            points.append((x + length * math.cos(angle), y + length * math.sin(angle)))
        self.pen.polygon(points, fill=colour, outline="black")

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw an arrow between two labels, short of both."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = math.hypot(dx, dy)
        ux, uy = dx / length, dy / length
        (x0, y0), (x1, y1) = (start[0] + 48 * ux, start[1] + 30 * uy), (end[0] - 48 * ux, end[1] - 30 * uy)
        self.pen.line((x0, y0, x1, y1), fill="black", width=3)
        left, right = (x1 - 12 * ux - 7 * uy, y1 - 12 * uy + 7 * ux), (x1 - 12 * ux + 7 * uy, y1 - 12 * uy - 7 * ux)
        self.pen.polygon([(x1, y1), left, right], fill="black")


def _cycle(draw: random.Random) -> tuple[Image.Image, list[Question]]:
    """A cycle of stages in an order that only the arrows show. The last question needs no look at the image."""
    stages = list(draw.choice(CYCLES))
    shown = draw.sample(stages, len(stages))
    page = _Page()
    places = []
    for i, stage in enumerate(shown):
        angle = 2 * math.pi * i / len(shown) - math.pi / 2
        places.append((SIZE / 2 + 150 * math.cos(angle), SIZE / 2 + 150 * math.sin(angle)))
        page.label(*places[-1], stage)
    for i in range(len(shown)):
        page.arrow(places[i], places[(i + 1) % len(shown)])
    at = draw.randrange(len(shown))
    after, before = shown[(at + 1) % len(shown)], shown[at - 1]

    def others(right: str) -> tuple[str, ...]:
        return (right, *draw.sample([stage for stage in shown if stage not in (right, shown[at])], 2))

    return page.image, [
        Question(f"In the diagram, which stage comes right after the {shown[at]}?", others(after)),
        Question(f"In the diagram, which stage comes right before the {shown[at]}?", others(before)),
        Question(f"What goes round in a cycle together with {stages[0]}?", (stages[1], "a bicycle", "the number 7")),
    ]


def _chain(draw: random.Random) -> tuple[Image.Image, list[Question]]:
    """A food web in three rows. Its arrows go from the food to the eater."""
    rows = [draw.sample(kinds, 3) for kinds in FOOD]
    page = _Page()
    places = {
        name: (80 + 144 * i, SIZE - 60 - 160 * level) for level, row in enumerate(rows) for i, name in enumerate(row)
    }
    for name, place in places.items():
        page.label(*place, name)
    eaten = {}
    for level in (1, 2):
        for eater, food in zip(rows[level], draw.sample(rows[level - 1], 3), strict=True):
            eaten[eater] = food
            page.arrow(places[food], places[eater])

    def asks(level: int) -> Question:
        eater = draw.choice(rows[level])
        rest = [name for name in rows[level - 1] if name != eaten[eater]]
        return Question(f"According to the food web, what does the {eater} eat?", (eaten[eater], *rest))

    return page.image, [asks(1), asks(2)]


def _parts(draw: random.Random) -> tuple[Image.Image, list[Question]]:
    """Shapes, each with a letter below it."""
    letters = "PQRSTUVW"[: draw.randint(4, 8)]
    page = _Page()
    shapes = {}
    for i, letter in enumerate(letters):
        x, y = 70 + 104 * (i % 4), 130 + 190 * (i // 4)
        shapes[letter] = (draw.choice(SHAPES), draw.choice(COLOURS))
        page.shape(shapes[letter][0], x, y, 40, shapes[letter][1])
        page.label(x, y + 64, letter)
    letter = draw.choice(letters)
    shape = shapes[letter][0]
    wanted = draw.choice(SHAPES)
    count = sum(shape == wanted for shape, _ in shapes.values())
    rest = draw.sample([other for other in SHAPES if other != shape], 3)
    return page.image, [
        Question(f"Which shape is labelled {letter}?", (shape, *rest)),
        Question(
            f"How many shapes of the kind '{wanted}' does the diagram show?",
            (str(count), *(str(n) for n in draw.sample([n for n in range(6) if n != count], 3))),
        ),
    ]


_KINDS: Sequence[Callable[[random.Random], tuple[Image.Image, list[Question]]]] = (_cycle, _chain, _parts)


def _turn(question: Question, draw: random.Random, source: str) -> dict[str, str]:
    """Return a question as The Cauldron writes it, its choices shuffled."""
    choices = draw.sample(question.choices, len(question.choices))
    lines = [f"{chr(ord('A') + i)}. {choice}" for i, choice in enumerate(choices)]
    user = "\n".join([f"Question: {question.text}", "Choices:", *lines, "Answer with the letter."])
    right = chr(ord("A") + choices.index(question.choices[0]))
    return {"user": user, "assistant": f"Answer: {right}", "source": source}


def rows_of_diagrams(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return ``number`` diagrams with two or three questions each, as rows of ``SCHEMA``."""
    draw = random.Random(seed)
    rows = []
    for i in range(number):
        image, questions = _KINDS[i % len(_KINDS)](draw)
        file = io.BytesIO()
        image.save(file, format="PNG")
        rows.append(
            {
                "images": [{"bytes": file.getvalue(), "path": None}],
                "texts": [_turn(question, draw, "synthetic") for question in questions],
            }
        )
    return rows


def write_diagrams(path: Path, number: int, seed: int = 0) -> None:
    """Write a Parquet file of ``number`` diagrams."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows_of_diagrams(number, seed), schema=SCHEMA), path)
