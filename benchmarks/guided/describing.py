"""Measures whether describing the format to a model improves its answers: ``python -m benchmarks.guided.describing``.

Four kinds of questions with undisputed answers, with and without a description of the format, with and without a
system message; all rows through one engine. One small model answers: the result shows the direction of the effect, not
its size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel

from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
from daft_vllm.demo import SYSTEM_MESSAGE, Label, package_table
from daft_vllm.model_configs import resolve_model
from daft_vllm.udf.answers.describe import describe
from daft_vllm.udf.answers.return_format import ReturnFormat

RIGHT = {
    "web": "aiohttp fastapi starlette uvicorn httpx requests urllib3 websockets PyJWT jinja2",
    "network": "aiohttp uvicorn httpx requests urllib3 websockets grpcio pyzmq dnspython certifi",
    "testing": "pytest pytest-cov pytest-timeout coverage ruff mypy",
    "data": "numpy pandas pyarrow daft matplotlib scipy pillow sympy",
    "machine learning": "torch torchvision transformers tokenizers safetensors accelerate xgrammar tiktoken numpy "
    "sentencepiece ray huggingface-hub huggingface_hub llguidance opencv-python-headless",
    "packaging": "setuptools packaging wheel build",
    "security": "cryptography certifi PyJWT",
    "system": "psutil filelock ray ruff",
    "text": "tiktoken sentencepiece regex jinja2 lark xgrammar llguidance tokenizers email-validator",
}
"""Packages by category; some belong to several."""

CAPITALS = """France=Paris Spain=Madrid Italy=Rome Germany=Berlin Japan=Tokyo China=Beijing Russia=Moscow
Egypt=Cairo Canada=Ottawa Peru=Lima Greece=Athens Portugal=Lisbon Austria=Vienna Poland=Warsaw Norway=Oslo
Sweden=Stockholm Ireland=Dublin Cuba=Havana Kenya=Nairobi Iran=Tehran Iraq=Baghdad Turkey=Ankara India=Delhi
Thailand=Bangkok Hungary=Budapest Belgium=Brussels Denmark=Copenhagen Finland=Helsinki Chile=Santiago Ukraine=Kyiv"""
NAMES = "Anna Smith,Bob Brown,Carla Diaz,David Lee,Eva Novak,Frank Moore,Grace Kim,Hugo Costa,Ines Meyer,John Park"
POSITIVE = """I love this phone, it works great.
The food was wonderful and the staff were kind.
Best book I have read this year.
A fantastic film, I laughed all night.
The hotel was clean and quiet, we will come back.
Great value, highly recommended.
My daughter adores this toy.
The battery lasts for days, amazing.
Beautiful music and a superb band.
Fast delivery and perfect quality."""
NEGATIVE = """I hate this phone, it breaks all the time.
The food was cold and the staff were rude.
Worst book I have read this year.
A terrible film, I fell asleep.
The hotel was dirty and loud, never again.
Poor value, a waste of money.
My daughter cried, the toy broke at once.
The battery dies in an hour, awful.
Ugly noise and a dreadful band.
Late delivery and broken goods."""


class _City(BaseModel):
    capital: str
    in_europe: bool


class _Person(BaseModel):
    name: str
    age: int
    city: str


class _Review(BaseModel):
    sentiment: Literal["positive", "negative"]
    summary: str


Rows = list[tuple[str, Callable[[dict[str, Any]], bool]]]
"""Questions, each with a function that says whether an answer is right."""


def questions() -> list[tuple[str, type[BaseModel], str, Rows]]:
    """Return the name, format, system message and rows of each kind of question."""
    categories: dict[str, set[str]] = {}
    for category, names in RIGHT.items():
        for name in names.lower().split():
            categories.setdefault(name, set()).add(category)
    packages: Rows = [
        (f"Package {row['name']}: {row['summary']}", lambda answer, right=right: answer["category"] in right)  # type: ignore[misc]
        for row in package_table().to_pylist()
        if (right := categories.get(row["name"].lower()))
    ]
    capital = dict(pair.split("=") for pair in CAPITALS.split())
    capitals: Rows = [
        (f"What is the capital of {country}?", lambda answer, city=city: city in answer["capital"])  # type: ignore[misc]
        for country, city in capital.items()
    ]
    known = [
        {"name": name, "age": 18 + 7 * i % 60, "city": city}
        for i, (name, city) in enumerate(zip(3 * NAMES.split(","), capital.values(), strict=True))
    ]
    people: Rows = [
        ("{name} is {age} years old and lives in {city}.".format(**person), person.__eq__) for person in known
    ]
    reviews: Rows = [
        (text, lambda answer, mood=mood: answer["sentiment"] == mood)  # type: ignore[misc]
        for mood, texts in (("positive", POSITIVE), ("negative", NEGATIVE))
        for text in texts.splitlines()
    ]
    return [
        ("category of a package", Label, SYSTEM_MESSAGE, packages),
        ("capital of a country", _City, "You know geography well.", capitals),
        ("person in a sentence", _Person, "Extract the person from the text.", people),
        ("mood of a review", _Review, "Classify the review.", reviews),
    ]


def main(
    model: Annotated[str, typer.Option(help="Folder or name.")] = "smollm2-135m",
    gpus: Annotated[float, typer.Option(help="GPUs of the engine.")] = 0,
) -> None:
    """Print how many answers are right, and how many have an empty field or are cut off."""
    typer.echo(
        "| question | rows | system message | format described | right | empty or cut off |\n|---|---|---|---|---|---|"
    )
    with OfflineEngine(EngineConfig(resolve_model(model), {"max_model_len": 2048}, gpus=gpus)) as engine:
        for name, asked, message, rows in questions():
            constraint = ReturnFormat.of(asked).constraint
            assert constraint is not None
            for system in (message, None):
                for preamble in (None, describe(constraint)):
                    requests = [
                        Request(
                            question,
                            system_message=system,
                            preamble=preamble,
                            constraint=constraint,
                            sampling=SamplingOptions(max_tokens=128),
                        )
                        for question, _ in rows
                    ]
                    outcomes = engine.run(requests)
                    answers = [json.loads(o.text or "") if o.error is None else None for o in outcomes]
                    right = sum(a is not None and ok(a) for a, (_, ok) in zip(answers, rows, strict=True))
                    empty = sum(a is None or "" in a.values() for a in answers)
                    cells = ["yes" if text else "no" for text in (system, preamble)]
                    typer.echo(f"| {name} | {len(rows)} | {' | '.join(cells)} | {right} | {empty} |")


if __name__ == "__main__":
    typer.run(main)
