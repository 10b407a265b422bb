"""Writes the results as one page, ``page.html``, and as ``report.md``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.card.report.view import View, view_of
from benchmarks.card.results import CardResults
from daft_vllm.pages.style import STYLE

_TEMPLATE = Path(__file__).with_name("page.html")


def write_page(results: CardResults) -> Path:
    """Write ``page.html`` and ``report.md`` beside the results, whatever there is, and return the page's path."""
    from jinja2 import Environment
    from markupsafe import Markup

    view = view_of(results)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=number, percent=percent)
    text = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(v=view, style=Markup(STYLE))
    page = results.folder / "page.html"
    for path, content in ((page, text), (results.folder / "report.md", markdown(view))):
        part = path.with_suffix(".part")
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    return page


def markdown(view: View) -> str:
    """Return the report as Markdown."""
    lines = [f"# {view.title}", "", view.state, "", "## Set-up", ""]
    lines += [f"- {name}: {value}" for name, value in view.setup.items()]
    lines += ["", "## Correctness", ""]
    if view.tests:
        rows = [[name, *(str(counts.get(one, "")) for one in view.outcomes)] for name, counts in view.tests.items()]
        lines += [*_table(["file", *view.outcomes], rows), ""]
        lines += [f"- {name}: {outcome}{': ' + _one_line(why) if why else ''}" for name, outcome, why in view.failures]
    else:
        lines.append("No test has run.")
    for workload, arms in view.workloads.items():
        heads = ["arm", "rows", "seconds", "rows/s", "daft-vllm over it", "marginal rows/s", "load s", "note"]
        rows = []
        for one in arms:
            s = one.summary
            cells = [one.arm, str(s.rows), number(s.seconds.median if s.seconds else None), number(one.rate)]
            cells += [number(one.behind), number(s.marginal.median if s.marginal else None), number(s.load_seconds)]
            rows.append([*cells, one.note])
        lines += ["", f"## Rows a second: {workload}", "", *_table(heads, rows)]
    if view.roofs:
        heads = ["workload", "arm", "rows", "computed prompt tokens/s", "output tokens/s", "steps/s", "running"]
        heads += ["of the card's 16-bit rate", "of its bandwidth", "estimated rows/s", "measured / estimated"]
        rows = []
        for roof in view.roofs:
            cells = [roof.workload, roof.arm, str(roof.rows), number(roof.computed), number(roof.output)]
            cells += [number(roof.steps), number(roof.running), percent(roof.flops), percent(roof.bandwidth)]
            rows.append([*cells, number(roof.estimated), number(roof.of_estimate)])
        lines += ["", "## Beside what the card can do", "", *_table(heads, rows)]
    lines += ["", "## Stages", ""]
    rows = [
        [one["name"], one["what"], number(one["planned"]), number(one["took"]), one["state"], _one_line(one["why"])]
        for one in view.stages
    ]
    lines += _table(["stage", "what", "planned s", "took s", "state", "why"], rows)
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    """Return a number as short as it is readable; an empty text for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """Return a share in percent; an empty text for None."""
    return "" if value is None else f"{100 * value:.0f}%"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _one_line(text: str) -> str:
    return " ".join(text.split())
