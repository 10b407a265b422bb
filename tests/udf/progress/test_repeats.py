"""Daft's line that a column has failed is left out where its exception is on the screen as well."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LINE = "Error when running pipeline node prompt"


@pytest.mark.parametrize(
    ("setup", "hidden"),
    [
        ("", True),
        ("from daft_vllm.cli.terminal import quiet; quiet()", True),
        ("import logging; logging.basicConfig()", False),  # whoever sets logging up gets what there is
    ],
)
def test_only_the_exception_says_that_a_query_failed(smollm2: str, setup: str, hidden: bool) -> None:
    code = textwrap.dedent(f"""
        import daft
        from daft_vllm import prompt
        from daft_vllm.errors import EngineStartError
        from daft_vllm.udf.worker import actor

        def load(spec):
            raise EngineStartError("the reason")

        actor.opened_engine = load
        {setup}
        daft.from_pydict({{"q": ["a"]}}).select(prompt(daft.col("q"), model={smollm2!r}, gpus=0)).collect()
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "daft_vllm.errors.EngineStartError: the reason"
    assert (LINE not in done.stderr) is hidden
    for internal in ("opened_engine", "threads.py", "in _submit"):
        assert internal not in done.stderr, "the traceback has the frames of Daft and the script only"
