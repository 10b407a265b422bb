"""Return formats that are nearly right, and what to write instead."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import daft
from pydantic import BaseModel

from daft_vllm.errors import SchemaError, suggest

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_ASSERTION_NAMES = """
    $ref $dynamicRef $recursiveRef additionalItems additionalProperties allOf anyOf const contains dependencies
    dependentRequired dependentSchemas else enum exclusiveMaximum exclusiveMinimum format if items maxContains maxItems
    maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf not oneOf pattern
    patternProperties prefixItems properties propertyNames required then type unevaluatedItems unevaluatedProperties
    uniqueItems
"""
_OTHER_NAMES = """
    $anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary contentEncoding contentMediaType
    contentSchema default definitions deprecated description example examples id nullable readOnly title writeOnly
"""
_ASSERTIONS = frozenset(_ASSERTION_NAMES.split())
"""Keywords of JSON Schema that say what a value may be, from draft 4 to 2020-12."""
_OTHERS = frozenset(_OTHER_NAMES.split())
"""The other keywords."""
_OPENAI = {
    "json_schema": "OpenAI's response_format: pass the schema in it, return_format=it['json_schema']['schema']",
    "json_object": "OpenAI's response_format: pass return_format=daft_vllm.Json",
    "text": "OpenAI's response_format: leave return_format out",
    "function": "a tool in OpenAI's form: pass it in tools=[...]",
}
"""What a dict with this ``type`` is."""


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
    if isinstance(given, re.Pattern):
        raise SchemaError(f"return_format is a compiled pattern: pass return_format=Regex({given.pattern!r}).")
    if isinstance(given, daft.Expression):
        raise SchemaError("return_format is a column: pass PerRow(column, {name: format}) for formats by row.")
    if isinstance(given, AbstractSet) and not isinstance(given, enum.EnumMeta):
        raise SchemaError("return_format is a set, which has no order: pass a list of strings.")
    if isinstance(given, str) and given.lstrip().startswith("{"):
        raise SchemaError("return_format is JSON text: pass the schema as a dict, return_format=json.loads(text).")


def refuse_no_schema(given: Mapping[str, Any]) -> None:
    """Raise ``SchemaError`` for a dict that is no JSON Schema though it is a valid one, or is one of OpenAI's dicts.

    JSON Schema ignores unknown keywords, so ``{"name": "string"}`` and ``{"type": "object", "propertes": ...}`` allow
    everything.
    """
    kind = given.get("type")
    if isinstance(kind, str) and kind in _OPENAI:
        raise SchemaError(f"return_format is {_OPENAI[kind]}.")
    if isinstance(kind, str) and kind not in _TYPES:
        raise SchemaError(
            f"not a JSON Schema, at $.type: {kind!r} is none of {', '.join(_TYPES)}.{suggest(kind, _TYPES)}"
        )
    unknown = [name for name in given if name not in _ASSERTIONS | _OTHERS]
    if not unknown:
        return
    if not given.keys() & (_ASSERTIONS | _OTHERS):
        properties = json.dumps({name: {"type": "string"} for name in unknown[:2]})
        raise SchemaError(
            f"return_format is a dict without a keyword of JSON Schema, which allows everything. Write for example "
            f'{{"type": "object", "properties": {properties}, "required": {json.dumps(unknown[:2])}}}.'
        )
    for name in unknown if kind == "object" and "properties" not in given else ():
        if near := suggest(name, ["properties"]):
            raise SchemaError(f"the schema's {name!r} is no keyword of JSON Schema.{near}")
