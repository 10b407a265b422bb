"""The plots: each figure of each policy over the number of replicas, one SVG for a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster.figures import Figures

_PANELS = (
    ("sharing", "share of the savable tokens saved"),
    ("load", "load, max / mean"),
    ("makespan", "makespan / bound"),
)
_COLOURS = {
    "live": "#1f5fa8",
    "planned": "#63a7e8",
    "daft": "#e0a458",
    "sglang": "#8e6fb5",
    "sorted": "#5aa27c",
    "random": "#9aa5b1",
}
_TOP = 3.0  # of the panels of ratios: one policy far off would flatten the others


def write_plots(figures: Sequence[Figures], out: Path) -> list[Path]:
    """Write ``TRACE.svg`` for each trace with several numbers of replicas, and return the paths.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = []
    for trace in dict.fromkeys(one.trace for one in figures):
        mine = [one for one in figures if one.trace == trace]
        if len({one.replicas for one in mine}) < 2:
            continue
        figure, panels = pyplot.subplots(1, len(_PANELS), figsize=(12, 3.6), layout="constrained")
        for panel, (name, label) in zip(panels, _PANELS, strict=True):
            for policy in dict.fromkeys(one.policy for one in mine):
                points = sorted((one.replicas, getattr(one, name)) for one in mine if one.policy == policy)
                panel.plot(*zip(*points, strict=True), marker=".", label=policy, color=_COLOURS.get(policy))
            panel.set_xscale("log", base=2)
            panel.set_xlabel("replicas")
            panel.set_title(label, fontsize="medium")
            panel.spines[["top", "right"]].set_visible(False)
            if name != "sharing":
                panel.set_ylim(top=min(_TOP, panel.get_ylim()[1]))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize="small")
        path = out / f"{trace}.svg"
        figure.savefig(path)
        pyplot.close(figure)
        paths.append(path)
    return paths
