"""Shows the answers to a few rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from daft_vllm.tables.writing import Written
from daft_vllm.wording import visible

_LONGEST = 300
"""Characters of a cell that are shown."""


@dataclass(frozen=True)
class Screen:
    """Takes the rows of a job and prints them.

    Attributes:
        column: name of the answers' column.
        error_column: name of the errors' column. It is left out if there is no error.
        place: the title of the summary.
    """

    column: str
    error_column: str
    place: str = "preview: nothing was written"
    notes: dict[str, list[str]] = field(default_factory=dict)

    def check_schema(self, schema: Any) -> None:
        """Every table can be shown."""

    def write(self, df: Any, errors: str | None = None) -> Written:
        """Run the plan of a table and print its rows. Return how many there were."""
        rows = df.to_pylist()
        shown = [name for name in df.schema().column_names() if name != self.error_column]
        if any(row[self.error_column] for row in rows):
            shown.append(self.error_column)
        table = Table(*(Column(Text(name)) for name in shown), show_lines=True)
        for row in rows:
            table.add_row(*(Text(_cell(row[name])) for name in shown))
        Console().print(table)
        return Written(len(rows), sum(row[errors] is not None for row in rows) if errors is not None else 0)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    lines = "\n".join(visible(line) for line in text[:_LONGEST].splitlines())
    return lines if len(text) <= _LONGEST else f"{lines}..."
