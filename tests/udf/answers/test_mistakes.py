"""Return formats that are nearly right."""

from __future__ import annotations

import dataclasses
import enum
import sys
from typing import Any

import pytest
from daft import col
from pydantic import BaseModel

from daft_vllm import prompt
from daft_vllm.errors import SchemaError


class City(BaseModel):
    name: str


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize("given", [City(name="Rome"), Point(1), Colour.RED])
def test_an_instance(given: Any) -> None:
    name = type(given).__name__
    with pytest.raises(SchemaError, match=rf"an instance of {name}: pass the class, return_format={name}\."):
        prompt(col("q"), given)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 ends with Python 3.13")
def test_a_model_of_pydantic_v1() -> None:
    from pydantic.v1 import BaseModel as Old

    class Town(Old):
        name: str

    with pytest.raises(SchemaError, match=r"Town is a model of pydantic v1: derive Town from pydantic\.BaseModel"):
        prompt(col("q"), Town)
