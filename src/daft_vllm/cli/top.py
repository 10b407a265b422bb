"""``daft-vllm top``: the jobs that run on this machine, and what each of their engines does."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daft_vllm.cli.terminal import console, fail

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from daft_vllm.udf.progress.figures import EngineLook, JobLook, Rates

_Looks = Sequence["JobLook"]
SECONDS = 1.0
"""How often jobs are looked at."""
_ONCE_SECONDS = 2.0
"""How much time is between the two looks of ``--once``. Engines write twice a second."""
_WINDOW = 5
"""How many looks back the first one is from which rates are counted."""


def top(
    once: Annotated[bool, typer.Option("--once", help="Show one picture, after two seconds, and end.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Only the engines with counters in this folder: progress_folder in Python.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: one JSON object.")] = False,
) -> None:
    """Show the jobs of this user on this machine, and what each of their engines does. Ctrl-C ends it.

    Without a terminal it shows one picture.
    """
    from rich.console import Console

    screen = Console()
    if as_json and not once:
        fail("--json is for one picture: pass --once too.")
    if folder is not None and not folder.is_dir():
        fail(f"--folder: {folder} is no folder. It is there while a query with progress_folder= runs.")
    try:
        if once or not screen.is_terminal:
            _show_once(screen, folder, as_json=as_json)
        else:
            _show_live(screen, folder)
    except KeyboardInterrupt:
        raise typer.Exit() from None  # the usual way to end it


def _show_once(screen: Console, folder: Path | None, *, as_json: bool) -> None:
    from daft_vllm.udf.progress.figures import as_json as job_json

    before = _look(folder)
    if before:
        time.sleep(_ONCE_SECONDS)
    jobs = _look(folder) if before else before
    if as_json:
        typer.echo(json.dumps({"jobs": [job_json(job, _rates(before, job)) for job in jobs]}))
    elif jobs:
        screen.print(picture(before, jobs))
    else:
        _say_none()


def _show_live(screen: Console, folder: Path | None) -> None:
    from rich.live import Live

    looks = deque([_look(folder)], maxlen=_WINDOW + 1)
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        while looks[-1]:
            live.update(picture(looks[0], looks[-1]), refresh=True)
            time.sleep(SECONDS)
            looks.append(_look(folder))
    _say_none()


def _say_none() -> None:
    import tempfile

    console.print(
        "no job of yours runs here. daft-vllm run, and Python in a terminal, keep counters in "
        f"{tempfile.gettempdir()}; with prompt(progress_folder=F), pass --folder F.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _look(folder: Path | None) -> _Looks:
    from daft_vllm.udf.progress.figures import jobs_here, look_at

    if folder is None:
        return [look_at(one) for one in jobs_here()]
    return [look_at(folder)] if folder.is_dir() else []


def _rates(before: _Looks, job: JobLook) -> dict[tuple[str, int], Rates]:
    """Return what each engine of a job does per second."""
    from daft_vllm.udf.progress.figures import rates_between

    earlier = {one.folder: one.engines for one in before}.get(job.folder, {})
    return {name: rates_between(earlier.get(name), engine) for name, engine in job.engines.items()}


def picture(before: _Looks, jobs: _Looks) -> RenderableType:
    """Return the picture of some jobs.

    Args:
        before: the same jobs some seconds before. Those that weren't there then have no rates.
        jobs: the jobs.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for job in jobs:
        table = _table(job, _rates(before, job))
        parts += [Text(_title(job), style="bold"), table if job.engines else Text("  no engine is open yet"), Text()]
    return Group(*parts[:-1])


def _title(job: JobLook) -> str:
    from daft_vllm.wording import counted, visible

    rows = f"{job.done:,}/{job.rows:,} rows" if job.rows is not None else f"{counted(job.done, 'row')} done"
    failed = [f"{job.failed:,} failed"] if job.failed else []
    began = [_clock(time.time() - job.started)] if job.started is not None else []
    process = [f"process {job.pid}"] if job.pid is not None else []
    model = visible(job.model) or "a model that isn't known yet"
    place = f" → {visible(job.output)}" if job.output else ""
    return f"{model}{place}: {', '.join([rows, *failed, *began, *process])}"


def _table(job: JobLook, rates: dict[tuple[str, int], Rates]) -> Table:
    from rich import box
    from rich.table import Table

    from daft_vllm.udf.progress.figures import total_of

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for head in ("rows/s", "prompt tok/s", "output tok/s", "cached", "running", "waiting", "deaths"):
        table.add_column(head, justify="right")
    for number, (name, engine) in enumerate(job.engines.items(), 1):
        state = "silent" if engine.is_silent else engine.figures.state
        table.add_row(f"{number} {state}", *_cells([engine], rates[name]))
    if len(job.engines) > 1:
        table.add_section()
        table.add_row("all", *_cells([*job.engines.values()], total_of(rates.values())))
    return table


def _cells(engines: Sequence[EngineLook], rates: Rates) -> list[str]:
    def total(name: str) -> int:
        return sum(getattr(one.figures, name) for one in engines)

    prompts = total("prompt_tokens")
    cached = f"{total('cached_tokens') / prompts:.0%}" if prompts else ""
    speed = [f"{rates.rows:,.1f}", f"{rates.prompt_tokens:,.0f}", f"{rates.completion_tokens:,.0f}"]
    return [*speed, cached, *(f"{total(name):,}" for name in ("running", "waiting", "deaths"))]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
