"""The command: ``python -m benchmarks.chaos --rounds 200 --seed 1``."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.chaos.faults import FAULTS, NOTHING
from benchmarks.chaos.plan import Planned, planned
from benchmarks.chaos.records import append, markdown, read
from benchmarks.chaos.rounds import Rounds

_END_SECONDS = 90.0
"""How long before its end a run that is limited in time begins no round, so that the last job can be finished."""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds of the plan.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the plan.")] = 1,
    minutes: Annotated[float, typer.Option(min=0, help="Begin no round after so long. 0: no limit.")] = 0,
    rows: Annotated[int, typer.Option(min=20, help="Of a job's table.")] = 120,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
    out: Annotated[Path, typer.Option(help="Folder of the results. A run that was stopped goes on.")] = Path(
        "out/chaos"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Only this fault; may be repeated.")] = None,
) -> None:
    """Play rounds of faults, write what happens, and end with 1 if something is not as it has to be."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the job and the folder go with it
    logging.getLogger("daft_vllm").setLevel(logging.ERROR)  # each look at a damaged store would warn of it
    unknown = set(only or ()) - {fault.name for fault in FAULTS}
    if unknown:
        raise typer.BadParameter(f"there is no fault {sorted(unknown)[0]!r}: {', '.join(f.name for f in FAULTS)}")
    left_out = {fault.name for fault in FAULTS if only and fault.name not in only}
    out.mkdir(parents=True, exist_ok=True)
    lines = out / f"rounds-{seed}.jsonl"
    done = {record.number for record in read(lines)}
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    # A short path: vLLM's and Ray's sockets are below it.
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        game = Rounds(Path(folder), rows, model)
        game.undisturbed()

        def play(one: Planned) -> None:
            record = game.play(one, seed)
            append(lines, record)
            (out / f"table-{seed}.md").write_text(markdown(read(lines)), encoding="utf-8")
            told = "; ".join(record.problems) or "as it has to be"
            print(
                f"{one.number:4} {one.fault.name} ({one.mode}): {record.outcome}, {record.seconds:.0f} s, {told}",
                flush=True,
            )

        for one in planned(seed, left_out):
            if one.number >= rounds or time.monotonic() > deadline - _END_SECONDS:
                break
            if one.number in done:
                continue
            if game.needs_end:
                play(Planned(-1, NOTHING, "driver", 0))
            play(one)
        if game.is_open:
            play(Planned(-1, NOTHING, "driver", 0))
    records = read(lines)
    print(markdown(records))
    sys.exit(any(record.problems for record in records))


if __name__ == "__main__":
    typer.run(main)
