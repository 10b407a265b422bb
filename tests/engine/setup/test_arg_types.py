"""What engine arguments may be, as it is read from vLLM's source, beside what vLLM itself says."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from daft_vllm.annotations import allows
from daft_vllm.engine.setup.arg_types import check_values, engine_arg_type, vllm_engine_arg_names
from daft_vllm.engine.setup.context import longest_context
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import known_models


def test_every_default_of_vllm_is_allowed() -> None:
    from vllm import AsyncEngineArgs

    defaults = {
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        for one in dataclasses.fields(AsyncEngineArgs)
    }
    wrong = {
        name: (value, engine_arg_type(name))
        for name, value in defaults.items()
        if not allows(engine_arg_type(name), value)
    }
    assert wrong == {}


def test_most_arguments_have_a_type() -> None:
    names = vllm_engine_arg_names() or frozenset()
    known = [name for name in names if engine_arg_type(name) is not Any]
    assert len(known) > 0.8 * len(names)
    assert "bfloat16" in typing.get_args(engine_arg_type("dtype"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", "big"),
        ("max_model_len", 4096.0),
        ("max_model_len", -2),
        ("dtype", "fp16"),
        ("gpu_memory_utilization", 1.5),
        ("gpu_memory_utilization", "0.9"),
        ("enforce_eager", "yes"),
        ("max_num_seqs", True),
        ("kv_cache_dtype", "fp7"),
        ("limit_mm_per_prompt", 3),
        ("tensor_parallel_size", 0),
    ],
)
def test_a_wrong_value(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^engine_args: {name} is "):
        check_values({name: value})


def test_the_context_of_every_known_model_is_allowed() -> None:
    for model in known_models().values():
        longest = longest_context(model.config)
        assert longest is None or longest >= model.max_model_len, model.name
