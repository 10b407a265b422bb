"""The demo's table is real text, and its label is a type that can be enforced."""

from __future__ import annotations

from daft_vllm.demo import Label, package_table
from daft_vllm.engine.setup.preflight import check_constraint
from daft_vllm.udf.answers.return_format import ReturnFormat


def test_package_table() -> None:
    rows = package_table().to_pydict()
    assert rows["id"] == list(range(len(rows["id"])))
    assert len(rows["id"]) > 100
    assert {"daft", "transformers"} <= set(rows["name"])
    assert all(rows["summary"])


def test_label_can_be_enforced() -> None:
    form = ReturnFormat.of(Label)
    assert form.constraint is not None
    check_constraint(form.constraint)
    assert set(form.dtype.fields) == {"category", "audience", "description"}
