"""The project's own schemas are enforced to the letter, or refused with keyword and place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.guided.cases import Case, read_cases
from benchmarks.guided.conformance import OWN_SCHEMAS, judge, summary
from daft_vllm.engine.constraints.limits.validator import validator_of

pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    found = list(read_cases(OWN_SCHEMAS))
    for case in found:
        judge(case, texts=5)
    return found


def test_nothing_that_a_schema_refuses_is_accepted(cases: list[Case]) -> None:
    assert len(cases) >= 100
    assert sum(case.invalid_refused for case in cases) > 400
    assert {case.name: case.invalid_accepted for case in cases if case.invalid_accepted} == {}
    assert sum(case.texts for case in cases) > 300
    assert {case.name: case.wrong_texts for case in cases if case.wrong_texts} == {}


def test_nearly_all_are_accepted_and_refuse_no_valid_instance(cases: list[Case]) -> None:
    refused = [case for case in cases if case.refused]
    assert len(refused) <= 0.05 * len(cases)
    assert all(": " in case.reason and case.keywords != "whole schema" for case in refused), refused
    narrow = [case for case in cases if case.valid_refused]
    assert len(narrow) < 0.02 * len(cases), narrow


def test_instances_are_what_they_say(cases: list[Case]) -> None:
    for path in sorted(OWN_SCHEMAS.rglob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        check = validator_of(data["schema"])
        assert [check.is_valid(test["data"]) for test in data["tests"]] == [test["valid"] for test in data["tests"]]


def test_both_layouts_are_read_and_summed_up(tmp_path: Path) -> None:
    suite = [{"description": "d", "schema": {"type": "integer"}, "tests": [{"data": 1, "valid": True}]}]
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    (tmp_path / "one.json").write_text(json.dumps({"schema": {"not": {"pattern": "a"}, "type": "string"}, "tests": []}))
    cases = list(read_cases(tmp_path))
    for case in cases:
        judge(case)
    assert [case.name for case in cases] == ["one", "suite/0"]
    assert "| enforced | 1 (50.0%) |" in summary("x", cases)
    assert cases[0].keywords == "not"
