"""What a run comes to, beside what is possible at best."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cluster.policies.base import Setting
from benchmarks.cluster.simulation import Run, spread
from benchmarks.cluster.traces import Trace


@dataclass(frozen=True)
class Figures:
    """The figures of one run.

    Args:
        trace: name of the trace.
        policy: name of the policy.
        replicas: how many engines.
        sequences: sequences that an engine runs at once.
        rows: rows of the table.
        visible: rows that the policy may have at once, those that are not answered.
        computed: prompt tokens computed over the fewest possible.
        sharing: share of the prompt tokens that needn't be computed, and were not. 1.0 if there are none.
        spread: replicas that rows with the same prefix were on, on average.
        load: tokens of the replica with the most, over the mean. Prompt tokens count if they were computed.
        seconds: until the last row was answered, in simulated time.
        makespan: that, over the lower bound.
        planning: seconds of the processor that the policy needed.
    """

    trace: str
    policy: str
    replicas: int
    sequences: int
    rows: int
    visible: int
    computed: float
    sharing: float
    spread: float
    load: float
    seconds: float
    makespan: float
    planning: float


def figures_of(trace: Trace, policy: str, setting: Setting, run: Run) -> Figures:
    """Return the figures of a run."""
    computed = sum(replica.computed_tokens for replica in run.replicas)
    loads = [replica.computed_tokens + replica.output_tokens for replica in run.replicas]
    saved = trace.prompt_tokens - trace.optimum
    return Figures(
        trace=trace.name,
        policy=policy,
        replicas=setting.replicas,
        sequences=setting.size.max_num_seqs,
        rows=len(trace.rows),
        visible=run.visible,
        computed=computed / trace.optimum,
        sharing=(trace.prompt_tokens - computed) / saved if saved else 1.0,
        spread=spread(trace, run),
        load=max(loads) * len(loads) / sum(loads),
        seconds=run.seconds,
        makespan=run.seconds / lower_bound(trace, setting),
        planning=run.planning,
    )


def lower_bound(trace: Trace, setting: Setting) -> float:
    """Return seconds that no policy can go below.

    Either the work that all replicas share, or the longest row alone. Work: each prompt token that has to be computed,
    each token of an answer, each read of the cache, and as many steps as answers need if each step writes one token
    for each of ``max_num_seqs`` sequences. Begin and end, when fewer run, are not part of it.
    """
    seconds, size = setting.seconds, setting.size
    written = read = 0
    longest = 0.0
    for row in trace.rows:
        writes = row.output - 1  # the first token comes with the prompt
        reads = writes * row.prompt + writes * (writes - 1) // 2
        written += writes
        read += reads
        longest = max(longest, (seconds.step + seconds.decode) * writes + seconds.context * reads)
    steps = max(written / size.max_num_seqs, trace.optimum / size.max_num_batched_tokens)
    work = seconds.new * trace.optimum + seconds.decode * written + seconds.context * read + seconds.step * steps
    return max(work / setting.replicas, longest + seconds.step)


def append(path: Path, figures: Figures) -> None:
    """Add a line to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(figures)) + "\n")


def read(path: Path) -> list[Figures]:
    """Return the figures in a file: of runs that were repeated, the last."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [Figures(**json.loads(line)) for line in lines if line.strip()]
    return list({(f.trace, f.policy, f.replicas, f.sequences, f.rows, f.visible): f for f in found}.values())


def markdown(figures: Iterable[Figures]) -> str:
    """Return a table of the figures."""
    head = (
        "| trace | rows | visible | replicas | sequences | policy | sharing | computed / fewest "
        "| replicas per prefix | load, max / mean | makespan / bound | seconds | planning, s |\n"
        "|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    return head + "".join(
        f"| {f.trace} | {f.rows:,} | {f.visible:,} | {f.replicas} | {f.sequences} | {f.policy} | {f.sharing:.3f} "
        f"| {f.computed:.3f} | {f.spread:.2f} | {f.load:.3f} | {f.makespan:.3f} | {f.seconds:.1f} "
        f"| {f.planning:.1f} |\n"
        for f in figures
    )
