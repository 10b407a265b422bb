"""Shows a job in the terminal: a line of progress while it runs, then a table of what it did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from daft_vllm.cli.summary import summary_table
from daft_vllm.cli.terminal import console
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.progress.display import ProgressDisplay
from daft_vllm.wording import counted

if TYPE_CHECKING:
    from daft_vllm.cli.stopping.signals import SignalHandler
    from daft_vllm.job import PromptCounts

SHORT_JOB = 256, 1024
"""A short job has at most this many rows, and at most this many output tokens of each.

vLLM answers these rows at once, in 1,024 steps at most. Without CUDA graphs a step of Llama-3.1-8B on an H100 takes
8.4 ms in place of 5.1 (cloudai.pt, "CUDA Graphs + torch.compile"), which is 3.4 s more in 1,024 steps. Compiling and
capturing the graphs takes 30 s and more (SkyRL pull request 2138).
"""


def run_with_progress(
    df: Any,
    messages: Any,
    output: Any,
    options: PromptOptions,
    *,
    column: str = "answer",
    error_column: str = "error",
    counts: PromptCounts | None = None,
    dollars_per_hour: float = 0.0,
    begin: Callable[[], object] = lambda: None,
    signals: SignalHandler | None = None,
) -> int:
    """Run a job with progress and a summary on stderr; return how many rows failed.

    Args:
        df: as in ``run_job``, and so are ``messages``, ``column`` and ``error_column``.
        messages: the prompts.
        output: an ``Output``, or another object that takes rows; ``place`` is the table's title.
        options: the options of ``prompt()``.
        column: name of the answers' column.
        error_column: name of the errors' column.
        counts: how many rows there are, and how many have no prompt. None: the rows are counted here.
        dollars_per_hour: the price of one GPU, or of a machine without GPUs.
        begin: called once, when everything is checked that can be checked before the load.
        signals: what ends the process early. It gets to know what to stop.
    """
    from daft_vllm.job import run_job
    from daft_vllm.udf.planning.room import engines_of

    total = counts.rows if counts is not None else df.count_rows()
    few_tokens = "max_tokens" in options.row_sampling or options.common_sampling.max_tokens <= SHORT_JOB[1]
    if options.goal is None and total <= SHORT_JOB[0] and few_tokens:
        options = replace(options, goal="short-job")
    display = ProgressDisplay(str(options.model), total, console=console, plain=True)
    with contextlib.ExitStack() as stack:

        def show() -> None:
            begin()
            console.print(f"{counted(total, 'row')}, model {options.model}: loading", highlight=False)
            stack.enter_context(display)
            if signals is not None:
                signals.install_again()
                signals.cleaners.insert(0, stack.close)

        summary = run_job(
            df,
            messages,
            output,
            options=options,
            column=column,
            error_column=error_column,
            watch=display,
            begin=show,
            folder=signals.folder if signals is not None else None,
            rows=total,
        )
    gpus = _gpus(options)
    engines = engines_of(options.max_concurrency, gpus, options.ray_options)
    price = dollars_per_hour * (gpus or 1.0) * engines  # without GPUs the price is that of the machine
    skips = options.skip_blank
    table = summary_table(
        summary, output.place, counts=counts, skip_blank=skips, dollars_per_hour=price, engines=engines
    )
    console.print(table)
    return summary.failed


def _gpus(options: PromptOptions) -> float:
    from daft_vllm.engine.setup.devices.driver import visible_gpus

    return float(bool(visible_gpus())) if options.gpus is None else options.gpus
