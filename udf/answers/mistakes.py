"""Return formats that are nearly right, and what to write instead."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from pydantic import BaseModel

from daft_vllm.errors import SchemaError


def refuse_mistaken(given: Any) -> None:
    """Raise ``SchemaError`` for a value of a type where the type is meant, and for models of pydantic v1."""
    kind = given if isinstance(given, type) else type(given)
    # Not by isinstance: importing pydantic.v1 warns on new versions of Python.
    if any(one.__module__.startswith("pydantic.v1") and one.__name__ == "BaseModel" for one in kind.__mro__):
        raise SchemaError(
            f"return_format={kind.__name__} is a model of pydantic v1: derive {kind.__name__} from pydantic.BaseModel."
        )
    is_instance = isinstance(given, (BaseModel, enum.Enum)) or (
        dataclasses.is_dataclass(given) and type(given).__module__.partition(".")[0] not in ("daft", "daft_vllm")
    )
    if is_instance and not isinstance(given, type):
        raise SchemaError(
            f"return_format is an instance of {kind.__name__}: pass the class, return_format={kind.__name__}."
        )
