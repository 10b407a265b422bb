"""Shows a job in the terminal: a line of progress while it runs, then a table of what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.table import Table

from daft_vllm.cli.terminal import console
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.progress.display import ProgressDisplay

SHORT_JOB = 256, 1024
"""A short job has at most this many rows, and at most this many output tokens of each.

vLLM answers these rows at once, in 1,024 steps at most. Without CUDA graphs a step of Llama-3.1-8B on an H100 takes
8.4 ms in place of 5.1 (cloudai.pt, "CUDA Graphs + torch.compile"), which is 3.4 s more in 1,024 steps. Compiling and
capturing the graphs takes 30 s and more (SkyRL pull request 2138).
"""


def run_with_progress(
    df: Any, messages: Any, output: str, options: PromptOptions, *, column: str = "answer", error_column: str = "error"
) -> int:
    """Run a job with progress and a summary on stderr; return how many rows failed. Arguments as in ``run_job``."""
    from daft_vllm.job import run_job

    total = df.count_rows()
    if options.goal is None and total <= SHORT_JOB[0] and options.sampling["max_tokens"] <= SHORT_JOB[1]:
        options = replace(options, goal="short-job")
    console.print(f"{total} rows, model {options.model}: loading", highlight=False)
    with ProgressDisplay(str(options.model), total, console=console, plain=True) as watch:
        summary = run_job(df, messages, output, options=options, column=column, error_column=error_column, watch=watch)
    table = Table(title=output, show_header=False)
    table.add_row("rows", str(summary.rows))
    table.add_row("rows without a value", str(summary.failed))
    table.add_row("seconds, load included", f"{summary.seconds:.1f}")
    table.add_row("prompt tokens", f"{summary.prompt_tokens}")
    table.add_row("of them from the prefix cache", f"{_share(summary.cached_tokens, summary.prompt_tokens):.0%}")
    table.add_row("computed, and the least possible", f"{summary.computed_tokens}, {summary.optimal_tokens}")
    table.add_row("completion tokens", f"{summary.completion_tokens}")
    table.add_row("rows asked again", f"{summary.retried}")
    table.add_row("rows with the answer of an equal row", f"{summary.duplicates}")
    table.add_row("sequences at once, on average", f"{summary.mean_running:.1f}")
    table.add_row("sequences put back because the KV cache was full", f"{summary.preemptions}")
    table.add_row("times that vLLM died and was started again", f"{summary.restarts}")
    table.add_row("seconds with rows in vLLM", f"{summary.busy_seconds:.1f}")
    table.add_row("a row's wait for vLLM, on average", f"{summary.queue_seconds / max(1, summary.rows):.1f} s")
    console.print(table)
    return summary.failed


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
