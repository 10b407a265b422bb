"""Orders the lines of a prompt template so that rows share the longest prefixes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import daft
import numpy as np
import numpy.typing as npt
from daft import DataFrame

from daft_vllm.udf.columns import template as templates

logger = logging.getLogger("daft_vllm")

SAMPLE_ROWS = 20_000
"""How many rows the order is chosen from: enough to see which values repeat, and read in seconds."""


@dataclass(frozen=True)
class SharedFirst:
    """A template with its lines in a new order, and the saving that is expected from it.

    Attributes:
        template: the new template.
        messages: the column that fills it, for ``prompt()``.
        columns: the columns in the order in which the template now names them.
        sample_rows: how many rows the figures below were counted on.
        characters: characters in the prompts of these rows.
        computed_before: characters that are computed with the original order, if the cache has room for every prefix.
        computed_after: the same for the new order.
    """

    template: str
    messages: daft.Expression
    columns: tuple[str, ...]
    sample_rows: int
    characters: int
    computed_before: int
    computed_after: int

    @property
    def saving(self) -> float:
        """The share of computed characters that the new order saves, from 0 to 1."""
        return 1 - self.computed_after / self.computed_before if self.computed_before else 0.0

    def sort(self, df: DataFrame) -> DataFrame:
        """Return ``df`` sorted so that rows that share a prefix follow each other.

        Only needed for a table with many more rows than are in flight at once: the engine orders the rows in flight.
        """
        return df.sort(list(self.columns))

    def __str__(self) -> str:
        rows = max(1, self.sample_rows)
        return (
            f"of {self.characters / rows:.1f} prompt characters per row, {self.computed_after / rows:.1f} are computed "
            f"in place of {self.computed_before / rows:.1f} ({self.saving:.0%} less, in {self.sample_rows} rows "
            f"looked at); columns in the order {', '.join(self.columns)}"
        )


class _Line(NamedTuple):
    text: str
    columns: tuple[str, ...]


class _Values(NamedTuple):
    """One line of the template in the sample: for each row, a number for the text that it has there, and its length."""

    codes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def shared_first(df: DataFrame, template: str, *, sample: int = SAMPLE_ROWS) -> SharedFirst:
    r"""Put the lines of a prompt template into the order in which rows share the longest prefixes.

    vLLM computes a prefix that rows have in common only once. If a template begins with a column that differs from row
    to row, the rows share nothing. With the repeating columns first, they share nearly all (arXiv 2403.05821).

    Lines move only where that can't change what the prompt says. Only lines with columns are reordered; they never move
    past a line without a column. So instructions above and a question below stay where they are. Write what must stay
    together on one line.

    Args:
        df: the table.
        template: the prompt with columns in braces, one field per line: ``"Review: {text}\nProduct: {name}\nGood?"``.
        sample: how many of the first rows to look at. They are read once, here.

    Returns:
        The new template, the column for ``prompt()``, and the expected saving, which ``print()`` shows.

    Raises:
        OptionError: a field is not a column, or the template has none.
    """
    names = df.schema().column_names()
    templates.parse_template(template, names)
    lines = [_Line(text, _columns_of(text, names)) for text in template.split("\n")]
    used = list(dict.fromkeys(column for line in lines for column in line.columns))
    schema = df.schema()
    texts = [templates.text_of(column, schema[column].dtype).alias(column) for column in used]
    rows = df.select(*texts).limit(sample).to_pydict()
    values = [_values(line, rows) for line in lines]
    order: list[int] = []
    for block in _blocks(lines):
        order += _best_order(block, values, order)
    before, after = _computed(range(len(lines)), values), _computed(order, values)
    new = "\n".join(lines[i].text for i in order)
    result = SharedFirst(
        template=new,
        messages=templates.template(new, df),
        columns=tuple(dict.fromkeys(column for i in order for column in lines[i].columns)),
        sample_rows=len(rows[used[0]]),
        characters=int(sum(int(value.lengths.sum()) for value in values)),
        computed_before=before,
        computed_after=after,
    )
    logger.info("shared fields first: %s", result)
    return result


def _columns_of(text: str, names: list[str]) -> tuple[str, ...]:
    parts = templates.parse_template(text, names, needs_column=False)
    return tuple(part.column for part in parts if part.column is not None)


def _values(line: _Line, rows: dict[str, list[Any]]) -> _Values:
    count = len(next(iter(rows.values())))
    seen: dict[tuple[Any, ...], int] = {}
    columns = [rows[column] for column in line.columns]
    keys = list(zip(*columns, strict=True)) if columns else [()] * count
    codes = np.fromiter((seen.setdefault(key, len(seen)) for key in keys), dtype=np.int64, count=count)
    fixed = len(line.text) + 1 - sum(len(column) + 2 for column in line.columns)
    sizes = np.fromiter((fixed + sum(len(value or "") for value in key) for key in seen), dtype=np.int64)
    return _Values(codes, sizes[codes] if count else codes)


def _blocks(lines: list[_Line]) -> list[list[int]]:
    """Return the lines in runs. Lines of one run may be reordered; a line without columns is a run of its own."""
    blocks: list[list[int]] = []
    for i, line in enumerate(lines):
        if line.columns and blocks and lines[blocks[-1][-1]].columns:
            blocks[-1].append(i)
        else:
            blocks.append([i])
    return blocks


def _best_order(block: list[int], values: list[_Values], above: list[int]) -> list[int]:
    """Return the best order found for a block's lines: single lines move until no move saves more characters."""
    order = sorted(block, key=lambda i: (int(values[i].codes.max(initial=0)), block.index(i)))
    best = min((order, list(block)), key=lambda candidate: _computed([*above, *candidate], values))
    cost = _computed([*above, *best], values)
    improved = True
    while improved:
        improved = False
        for i in block:
            for place in range(len(block)):
                candidate = [j for j in best if j != i]
                candidate.insert(place, i)
                candidate_cost = _computed([*above, *candidate], values)
                if candidate_cost < cost:
                    best, cost, improved = candidate, candidate_cost, True
    return best


def _computed(order: list[int] | range, values: list[_Values]) -> int:
    """Count the characters of all distinct prefixes: a line counts once per distinct text of it and the lines above."""
    total = 0
    groups: npt.NDArray[np.int64] | None = None
    for i in order:
        codes, lengths = values[i]
        if not codes.size:
            return 0
        combined = codes if groups is None else groups * (int(codes.max()) + 1) + codes
        _, first, groups = np.unique(combined, return_index=True, return_inverse=True)
        total += int(lengths[first].sum())
    return total
