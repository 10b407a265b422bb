"""Runs one table through one model, as ``daft-vllm run`` does: reads it, asks, writes the answers, reports progress."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
from daft import DataFrame, col

from daft_vllm.errors import OptionError
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.progress.display import watching
from daft_vllm.udf.prompt import prompt_expression
from daft_vllm.udf.worker.progress import read_progress

READERS: Mapping[str, Callable[[str], DataFrame]] = {
    ".parquet": daft.read_parquet,
    ".csv": daft.read_csv,
    ".json": daft.read_json,
    ".jsonl": daft.read_json,
    ".ndjson": daft.read_json,
}
_JSON_LINES = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class Summary:
    """What a job did.

    Attributes:
        rows: rows read and written.
        failed: rows without a value; null prompts don't count.
        seconds: wall time, the model's load included.
        prompt_tokens: prompt tokens of the generated rows.
        cached_tokens: those of them that came from the prefix cache.
        completion_tokens: tokens generated.
        optimal_tokens: the fewest prompt tokens that had to be computed, in the best order of the rows.
        retried: rows that were asked again; a row counts once for each time.
        duplicates: rows that got the answer of an equal row.
        mean_running: mean number of sequences that vLLM ran at once, per engine.
        preemptions: sequences that vLLM had to put back because the KV cache was full.
        restarts: times that vLLM died and was started again.
        busy_seconds: time with rows inside vLLM, summed over engines.
        queue_seconds: time that rows waited for vLLM, summed over rows.
    """

    rows: int
    failed: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    optimal_tokens: int
    retried: int
    duplicates: int
    mean_running: float
    preemptions: int
    restarts: int
    busy_seconds: float
    queue_seconds: float

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were computed: those that did not come from the prefix cache."""
        return self.prompt_tokens - self.cached_tokens


def read_table(path: str) -> DataFrame:
    """Read Parquet, CSV or JSON lines, by the suffix; globs and object-store URLs as Daft takes them.

    Raises:
        OptionError: the suffix is none of these, or nothing is there.
    """
    suffix = Path(path.rstrip("*/")).suffix.lower()
    if suffix not in READERS and Path(path).is_dir():
        suffix, path = ".parquet", f"{path.rstrip('/')}/**/*.parquet"
    if suffix not in READERS:
        raise OptionError(f"cannot tell the format of {path!r}: its name has to end in {', '.join(READERS)}.")
    try:
        return READERS[suffix](path)
    except FileNotFoundError as e:
        raise OptionError(f"there is no input {path!r}: {e}") from e


def run_job(
    df: DataFrame,
    messages: daft.Expression,
    output: str,
    *,
    options: PromptOptions,
    column: str = "answer",
    error_column: str = "error",
    watch: Callable[[Mapping[str, float]], None] | None = None,
) -> Summary:
    """Answer every row of ``df`` and write it with two more columns to ``output``.

    Args:
        df: the table; all its columns are kept.
        messages: the prompts.
        output: a ``.parquet`` or JSON-lines file. It is written under another name as batches are answered, and renamed
            when it is complete. Or a folder or object-store URL, which Daft's own Parquet writer fills.
        options: the options of ``prompt()``.
        column: name of the answers' column.
        error_column: name of the column with the reason why a row has no answer.
        watch: called about twice a second with the engines' counters (names: ``EngineStats``, and ``workers``).

    Raises:
        OptionError: a column's name is taken, or the output's format is unknown.
    """
    for name in (column, error_column):
        if name in df.schema().column_names():
            raise OptionError(f"the input has a column {name!r} already: choose other names for the new columns.")
    write = _writer(output)
    started = time.monotonic()
    # A worker that is late may still write while the folder is removed.
    temporary = tempfile.TemporaryDirectory(prefix="daft-vllm-", ignore_cleanup_errors=True)
    with temporary as folder, watching(lambda: read_progress(folder), watch):
        whole = "__daft_vllm__"
        expression = prompt_expression(messages, replace(options, details=True, progress_folder=folder))
        answered = df.with_column(whole, expression)
        result = answered.with_columns({column: col(whole).get("value"), error_column: col(whole).get("error")})
        rows = write(result.exclude(whole))
        counters = read_progress(folder)
    return Summary(
        rows=rows,
        failed=int(counters["failed"]),
        seconds=time.monotonic() - started,
        prompt_tokens=int(counters["prompt_tokens"]),
        cached_tokens=int(counters["cached_tokens"]),
        completion_tokens=int(counters["completion_tokens"]),
        optimal_tokens=int(counters["optimal_tokens"]),
        retried=int(counters["retried"]),
        duplicates=int(counters["duplicates"]),
        mean_running=counters["mean_running"],
        preemptions=int(counters["preemptions"]),
        restarts=int(counters["restarts"]),
        busy_seconds=counters["busy_seconds"],
        queue_seconds=counters["queue_seconds"],
    )


def _writer(output: str) -> Callable[[DataFrame], int]:
    """Return the function that runs a table's plan and writes its rows to ``output``; it returns how many."""
    suffix = Path(output).suffix.lower()
    if "://" in output or output.endswith("/") or Path(output).is_dir():
        return lambda df: _write_folder(df, output)
    if suffix == ".parquet":
        return lambda df: _write_file(df, output, _parquet_sink)
    if suffix in _JSON_LINES:
        return lambda df: _write_file(df, output, _json_sink)
    raise OptionError(f"cannot tell the format of {output!r}: end it in .parquet, .jsonl, or / for a folder.")


def _write_folder(df: DataFrame, output: str) -> int:
    written = df.write_parquet(output).to_pydict()["path"]
    return sum(daft.read_parquet(path).count_rows() for path in written)


def _write_file(
    df: DataFrame, output: str, sink: Callable[[Path, pa.Schema], contextlib.AbstractContextManager[Any]]
) -> int:
    target = Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    rows = 0
    try:
        with sink(part, df.schema().to_pyarrow_schema()) as put:
            for batch in df.to_arrow_iter():
                put(batch)
                rows += batch.num_rows
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return rows


@contextlib.contextmanager
def _parquet_sink(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    with pq.ParquetWriter(path, schema) as writer:
        yield lambda batch: writer.write_table(pa.Table.from_batches([batch]).cast(schema))


@contextlib.contextmanager
def _json_sink(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    with path.open("w", encoding="utf-8") as file:

        def put(batch: pa.RecordBatch) -> None:
            for row in batch.to_pylist():
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

        yield put
