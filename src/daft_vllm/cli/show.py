"""``daft-vllm show``: the answers of a store, and the rows that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daft_vllm.cli.terminal import console, fail, own_cause, quiet

if TYPE_CHECKING:
    from daft_vllm.stores.rows import Figures

_ON_SCREEN = 20
"""Rows that are shown if nobody says how many."""
_CELL = 200
"""Characters of a text that are shown in the terminal."""
STORE = "The folder or URL that keeps the answers: --store of daft-vllm run, store= in Python."


def show(
    store: Annotated[str, typer.Argument(help=STORE)],
    failed: Annotated[bool, typer.Option("--failed", help="Only rows that failed.")] = False,
    errors: Annotated[
        list[str] | None, typer.Option(help="Only rows with this error code. May be repeated.", metavar="CODE")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"At most N rows. Default: {_ON_SCREEN}; with --output all.", metavar="N")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with whole texts.")] = False,
    output: Annotated[
        str | None, typer.Option(help="Write the rows into a .parquet, .jsonl, .csv or .tsv file instead.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")] = False,
) -> None:
    """Show what a store has: counters, answers, and the rows that failed. The store may be in use."""
    from daft_vllm.errors import DaftVLLMError

    try:
        quiet()
        codes = errors or []
        _check(codes, output, as_json=as_json)
        from daft_vllm.engine.store.remote import local_copy

        with local_copy(store) as folder:
            if output is not None:
                _write(store, folder, output, limit, failed=failed, codes=codes, overwrite=overwrite)
            else:
                _show(store, folder, limit, failed=failed, codes=codes, as_json=as_json)
    except DaftVLLMError as e:
        fail(str(e))
    except Exception as e:
        cause = own_cause(e)
        if cause is None:
            raise
        fail(str(cause))


def _check(codes: list[str], output: str | None, *, as_json: bool) -> None:
    from typing import get_args

    from daft_vllm.engine.requests.outcome import NOT_ASKED, ErrorCode
    from daft_vllm.errors import OptionError, suggest

    known = [code for code in get_args(ErrorCode) if code not in NOT_ASKED]
    for code in codes:
        if code not in known:
            raise OptionError(f"--errors {code!r} is no error code.{suggest(code, known)} Codes: {', '.join(known)}.")
    if output is not None and as_json:
        raise OptionError("--json and --output exclude each other: pass one of them.")


def _show(store: str, folder: Path, limit: int | None, *, failed: bool, codes: list[str], as_json: bool) -> None:
    from daft_vllm.stores.rows import figures_of, rows_of

    rows: list[dict[str, Any]] = []
    most = _ON_SCREEN if limit is None else limit
    figures = figures_of(folder)
    for batch in rows_of(folder, failed=failed, codes=codes) if most else ():
        rows += batch.slice(0, most - len(rows)).to_pylist()
        if len(rows) == most:
            break
    if as_json:
        typer.echo(json.dumps({"counters": _counters(figures), "asked": figures.asked, "rows": [*map(_json, rows)]}))
    else:
        _print(store, figures, rows, only=failed or bool(codes))


def _write(
    store: str, folder: Path, output: str, limit: int | None, *, failed: bool, codes: list[str], overwrite: bool
) -> None:
    import daft

    from daft_vllm.stores.rows import rows_of, table_of
    from daft_vllm.tables.writing import output_of
    from daft_vllm.wording import counted

    table = table_of(rows_of(folder, failed=failed, codes=codes))
    written = output_of(output, overwrite=overwrite).write(daft.from_arrow(table if limit is None else table[:limit]))
    console.print(f"{counted(written.rows, 'row')} of {store} in {output}", highlight=False, markup=False)


def _counters(figures: Figures) -> dict[str, Any]:
    totals = dict(figures.totals)
    return {
        "rows": figures.rows,
        "failed": figures.failed,
        "attempts": totals.pop("attempt"),
        **totals,
        "first_written": float(figures.written[0]) if figures.rows else None,
        "last_written": float(figures.written[-1]) if figures.rows else None,
    }


def _json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON holds it."""
    return {
        "key": row["row_key"],
        "prompt": row["prompt"],
        "text": row["text"],
        "reasoning": row["reasoning"],
        "error": None if row["error_code"] is None else {"code": row["error_code"], "message": row["error_message"]},
        "attempts": row["attempt"],
        **{name: row[name] for name in ("finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens")},
        **{name: row[name] for name in ("seconds", "queue_seconds")},
        "written": row["written"].isoformat(),
    }


def _print(store: str, figures: Figures, rows: list[dict[str, Any]], *, only: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from daft_vllm.wording import safe_line

    screen = Console()
    counts = Table(title=Text(f"the store {store}"), show_header=False)
    counts.add_row("rows", str(figures.rows))
    counts.add_row("rows that failed", str(figures.failures))
    for code, count in figures.failed.items():
        counts.add_row(Text(f"  {code}"), str(count))
    counts.add_row("times that a row was asked", str(figures.totals["attempt"]))
    counts.add_row("prompt tokens", str(figures.totals["prompt_tokens"]))
    counts.add_row("of them from the prefix cache", str(figures.totals["cached_tokens"]))
    counts.add_row("completion tokens", str(figures.totals["completion_tokens"]))
    screen.print(counts)
    if not rows:
        return
    has_keys = any(row["row_key"] is not None for row in rows)
    heads = [*(["key"] if has_keys else []), "prompt", "answer", "error", "asked"]
    table = Table(*(Column(head, overflow="fold") for head in heads), show_lines=True)
    for row in rows:
        error = "" if row["error_code"] is None else f"{row['error_code']}: {row['error_message']}"
        texts = [*([row["row_key"]] if has_keys else []), row["prompt"], row["text"], error]
        table.add_row(*(Text(safe_line(text or "", _CELL)) for text in texts), str(row["attempt"]))
    screen.print(table)
    of_all = figures.failures if only else figures.rows
    if len(rows) < of_all:
        console.print(f"{len(rows)} rows are shown; --limit N shows more, --output FILE writes all", highlight=False)
