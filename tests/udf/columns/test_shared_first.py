"""Shared fields first: what moves, what stays, and whether the promised saving is true."""

from __future__ import annotations

import random

import daft
import pytest

from daft_vllm import shared_first, template
from daft_vllm.errors import OptionError


def reviews(products: int, per_product: int) -> daft.DataFrame:
    rng = random.Random(1)
    rows = [
        {
            "review": f"review {p}/{r} " + "x" * 40,
            "name": f"product {p}",
            "about": f"about {p} " + "y" * 300,
            "shop": "one shop",
        }
        for p in range(products)
        for r in range(per_product)
    ]
    rng.shuffle(rows)
    return daft.from_pylist(rows)


TEMPLATE = "Judge the review.\nReview: {review}\nName: {name}\nAbout: {about}\nShop: {shop}\nIs it good?"


def distinct_prefix_characters(prompts: list[str]) -> int:
    return len({prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)})


def test_repeating_lines_come_first_and_the_frame_stays() -> None:
    df = reviews(10, 20)
    plan = shared_first(df, TEMPLATE)
    lines = plan.template.splitlines()
    assert lines[0] == "Judge the review."
    assert lines[-1] == "Is it good?"
    assert lines[-2] == "Review: {review}"
    assert sorted(lines) == sorted(TEMPLATE.splitlines())
    assert plan.columns[-1] == "review"
    assert "less" in str(plan)
    prompts = df.select(plan.messages.alias("p")).to_pydict()["p"]
    assert all(prompt.startswith("Judge the review.\nShop: one shop\n") for prompt in prompts)
    # What is promised is what the prompts share, up to the characters that different values begin with.
    before = distinct_prefix_characters(df.select(plain(TEMPLATE, df)).to_pydict()["p"])
    after = distinct_prefix_characters(prompts)
    assert plan.saving == pytest.approx(1 - after / before, abs=0.05)
    assert plan.saving > 0.7
    assert plan.sort(df).to_pydict()["name"] == sorted(df.to_pydict()["name"])


def plain(text: str, df: daft.DataFrame) -> daft.Expression:
    return template(text, df).alias("p")


def test_a_line_without_columns_is_passed_by_none() -> None:
    df = reviews(4, 5)
    plan = shared_first(df, "Review: {review}\nNow the product.\nAbout: {about}\nName: {name}")
    assert plan.template.splitlines()[:2] == ["Review: {review}", "Now the product."]
    assert plan.saving == 0


def test_one_line_is_left_alone_and_ends_are_kept() -> None:
    df = reviews(2, 2)
    assert shared_first(df, "{review} of {name}\n").template == "{review} of {name}\n"


def test_a_table_without_rows_and_with_nulls() -> None:
    none = reviews(1, 1).where(daft.col("name") == "nobody")
    plan = shared_first(none, TEMPLATE)
    assert plan.sample_rows == 0
    assert plan.saving == 0
    df = daft.from_pydict({"a": ["1", None, "3"], "b": ["same"] * 3})
    plan = shared_first(df, "A {a}\nB {b}")
    assert plan.template == "B {b}\nA {a}"
    assert df.select(plan.messages.alias("p")).to_pydict()["p"] == ["B same\nA 1", None, "B same\nA 3"]


def test_unknown_columns_are_said() -> None:
    with pytest.raises(OptionError, match="Did you mean 'review'"):
        shared_first(reviews(1, 1), "{revew}")
    with pytest.raises(OptionError, match="names no column"):
        shared_first(reviews(1, 1), "nothing")


def test_a_misspelt_column_is_told_once() -> None:
    with pytest.raises(OptionError) as error:
        template("{reveiw}", daft.from_pydict({"review": ["x"]}))
    assert str(error.value) == "the prompt's field {reveiw} is not a column. Did you mean 'review'? Columns: review."
    assert str(error.value).startswith("the prompt's field {reveiw} is not a column. Did you mean 'review'?")
