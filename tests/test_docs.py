"""What the documents name is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CHANGELOG.md",
        "docker/README.md",
        "docs/architecture.md",
        "docs/ray.md",
        "docs/speed.md",
        "docs/stopped-jobs.md",
    ],
)
def test_files_that_a_document_names_exist(document: str) -> None:
    """Paths between backticks, from the root or from the folder that was named before; and links."""
    text = (ROOT / document).read_text(encoding="utf-8")
    files = [
        str(path.relative_to(ROOT))
        for top in ("benchmarks", "docs", "engine", "model_configs", "src", "tests", "udf")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    named = re.findall(r"`((?:[\w.]+/)*[\w]+\.(?:pyi?|toml))`", text)
    ours = [name for name in named if "/" in name or document == "docs/architecture.md"]
    assert [
        name for name in ours if name != "pyproject.toml" and not any(f"/{f}".endswith(f"/{name}") for f in files)
    ] == []
    folders = re.findall(r"`((?:[\w.]+/)+)`", text)
    assert [name for name in folders if not any(f"/{name}" in f"/{file}" for file in (*files, "docker/"))] == []
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []


def test_modules_that_a_command_names_exist() -> None:
    """``python -m benchmarks.parts.startup`` and the like, in every document and docstring."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), ROOT / "Makefile"]
    sources = [path for top in ("benchmarks", "engine", "udf", "model_configs") for path in (ROOT / top).rglob("*.py")]
    named = {
        module
        for path in (*documents, *sources)
        for module in re.findall(r"python -m (benchmarks(?:\.\w+)+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 10
    places = {name: ROOT / name.replace(".", "/") for name in sorted(named)}
    assert [
        name
        for name, place in places.items()
        if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file())
    ] == []


SNIPPETS = re.findall(
    r"^```python(?: (first|table))?\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
)
TABLE = next(code for kind, code in SNIPPETS if kind == "table")
_RUNS_A_MODEL = (".show()", ".to_pydict()")


def test_readme_has_one_table_for_its_snippets() -> None:
    assert [kind for kind, _ in SNIPPETS][:2] == ["first", "table"]
    assert len(SNIPPETS) >= 12


@pytest.mark.parametrize(
    "code", [code for kind, code in SNIPPETS if not kind and not any(word in code for word in _RUNS_A_MODEL)]
)
def test_snippets_of_the_readme_run_after_its_table(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand, up to the query, as with eight GPUs. What a comment says of a line's output is how that begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("daft_vllm.engine.setup.devices.room.visible_gpus", lambda: [str(gpu) for gpu in range(8)])
    names: dict[str, object] = {"__name__": "snippet"}
    exec(compile(TABLE + code, "README.md", "exec"), names)
    said = re.findall(r"^print\(.*\)  # (.*?)(?:; \.\.\.)?$", code, re.M)
    assert all(text in capsys.readouterr().out for text in said)


def test_snippets_of_the_readme_that_run_a_model(tmp_path: Path) -> None:
    """In one process, with one engine."""
    running = [(kind, code) for kind, code in SNIPPETS if any(word in code for word in _RUNS_A_MODEL)]
    assert len(running) == 2
    (_, first), (_, second) = running
    script = tmp_path / "snippets.py"
    below_the_main_guard = indent(TABLE + second, "    ")
    script.write_text(f"{first}\n{below_the_main_guard}", encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'answer': [{'capital': " in done.stdout
    assert re.search(r"│ 2 +│", done.stdout), done.stdout  # the null prompt's row
