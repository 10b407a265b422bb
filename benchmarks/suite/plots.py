"""The two bar charts: rows per second relative to the oracle, and prompt tokens computed over the optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.suite.summary import ORACLES, Summary, ratio

OURS = "ours"
COLOURS = ("#9aa5b1", "#c3ccd6", "#e0a458", "#c97b2d", "#8e6fb5", "#6a4c93", "#5aa27c", "#3f7d5c")
OUR_COLOURS = ("#1f5fa8", "#2f80d0", "#63a7e8", "#0f3f73")


def write_plots(summaries: Sequence[Summary], out: Path) -> list[Path]:
    """Write ``relative.png`` and ``computed.png``, if there is data for them, and return the paths written.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    paths = []
    charts: list[tuple[str, str, Callable[[Summary], float | None]]] = [
        ("relative.png", "rows/s relative to the faster oracle", lambda s: ratio(s, summaries, ORACLES)),
        ("computed.png", "prompt tokens computed / fewest possible", lambda s: s.computed),
    ]
    for name, label, value in charts:
        values = {(s.workload, s.arm): number for s in summaries if (number := value(s)) is not None}
        if values:
            _bars(values, label, out / name)
            paths.append(out / name)
    return paths


def _bars(values: dict[tuple[str, str], float], label: str, path: Path) -> None:
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(workload for workload, _ in values))
    arms = sorted(dict.fromkeys(arm for _, arm in values), key=lambda arm: (arm.startswith(OURS), arm not in ORACLES))
    colours = _colours(arms)
    width = 0.86 / len(arms)
    figure, axes = pyplot.subplots(figsize=(max(7.0, 1.7 * len(workloads) + 2), 4.2), layout="constrained")
    for position, arm in enumerate(arms):
        at = [x - 0.43 + (position + 0.5) * width for x, w in enumerate(workloads) if (w, arm) in values]
        heights = [values[workload, arm] for workload in workloads if (workload, arm) in values]
        axes.bar(at, heights, width, label=arm, color=colours[arm])
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=min(len(arms), 6), frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _colours(arms: Sequence[str]) -> dict[str, str]:
    """Give each arm a colour: blues to our arms, other colours to the rest."""
    ours = [arm for arm in arms if arm.startswith(OURS)]
    others = [arm for arm in arms if not arm.startswith(OURS)]
    chosen = {arm: OUR_COLOURS[i % len(OUR_COLOURS)] for i, arm in enumerate(ours)}
    return chosen | {arm: COLOURS[i % len(COLOURS)] for i, arm in enumerate(others)}
