"""What happened in each round, and the file that keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """One start of a job, with one fault.

    Attributes:
        number: of the round in the plan; -1 for a start that only finishes a job.
        seed: of the plan.
        job: number of the job; rounds of one job have the same store.
        fault: its name.
        mode: where the engine ran.
        before: answers in the store before.
        after: answers in the store after it.
        outcome: what the job did.
        exit_code: of the job; negative for a signal. None: it had to be killed, because it did not end.
        said: the last line that it wrote.
        seconds: from the start to the end.
        twice: answers that were written although the store had one for their row.
        left_processes: names of processes that outlived the job.
        left_files: what it left in the temporary folder and in shared memory.
        problems: what is not as it has to be. Empty: nothing.
    """

    number: int
    seed: int
    job: int
    fault: str
    mode: str
    before: int
    after: int
    outcome: str
    exit_code: int | None
    said: str
    seconds: float
    twice: int
    left_processes: list[str]
    left_files: list[str]
    problems: list[str]


def append(path: Path, record: Record) -> None:
    """Add a record to a file of JSON lines. It is on the disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Record]:
    """Return the records of a file, without a last line that was cut off."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(Record(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return records


def markdown(records: Iterable[Record]) -> str:
    """Return the table of faults, and each round with a problem."""
    by_fault: dict[str, list[Record]] = {}
    for record in records:
        by_fault.setdefault(record.fault, []).append(record)
    lines = [
        "| fault | rounds | recovered in place | resumed | refused with a clear error | problems | rows computed twice "
        "| seconds a round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fault, rounds in sorted(by_fault.items()):
        outcomes = [record.outcome for record in rounds]
        cells = [
            fault,
            len(rounds),
            *(outcomes.count(one) for one in ("recovered in place", "ended, to be resumed")),
            outcomes.count("refused with a clear error"),
            sum(bool(record.problems) for record in rounds),
            sum(record.twice for record in rounds),
            f"{sum(record.seconds for record in rounds) / len(rounds):.0f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines.append("")
    for record in (record for rounds in by_fault.values() for record in rounds if record.problems):
        lines.append(f"- round {record.number}, {record.fault} ({record.mode}): {'; '.join(record.problems)}")
        lines.append(f"  It said: {record.said}")
    return "\n".join(lines).rstrip() + "\n"
