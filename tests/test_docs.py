"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("document", ["README.md", "CHANGELOG.md", "docs/architecture.md"])
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
    assert [name for name in sorted(named) if not (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()] == []
