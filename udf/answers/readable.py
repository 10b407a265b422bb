"""Which values of an enum or ``Literal``, and which keys of a dict, Pydantic reads from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic_core
from pydantic_core import SchemaValidator, ValidationError

from daft_vllm.engine.constraints.formats import PATTERNS
from daft_vllm.errors import SchemaError

_INTEGER = "(0|[1-9][0-9]{0,17})"
_PATTERNS_OF_KEYS = {
    "integer": f"^-?{_INTEGER}$",
    "number": f"^-?{_INTEGER}([.][0-9]{{1,15}})?$",
    "boolean": "^(true|false)$",
}
_PATTERNS_OF_FORMATS = {**PATTERNS, "uuid": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}


def check_readable(core_schema: Any, values: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise ``SchemaError`` for a value of an enum or ``Literal`` that Pydantic doesn't read from JSON.

    Examples are dates, tuples, and members of an enum in a ``Literal``, unless the enum is one of strings.

    Args:
        core_schema: Pydantic's core schema of the enum or ``Literal``.
        values: its values.
        written: the same values as JSON has them.
    """
    validator = SchemaValidator(core_schema)
    for value, text in zip(values, map(pydantic_core.to_json, written), strict=True):
        if not _reads(validator, text):
            raise SchemaError(
                f"return_format has {value!r} in an enum or a Literal, and Pydantic doesn't read it from JSON. Use "
                'texts and numbers. For a Literal of an enum\'s members, write the enum as "class Kind(str, Enum)".'
            )


def keys_of_dict(core_schema: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a dict's keys as texts. Empty: any text is one.

    Args:
        core_schema: Pydantic's core schema of the keys.
        keys: their JSON Schema as if they were values. In JSON all keys are strings.

    Raises:
        SchemaError: JSON has no such keys.
    """
    if "enum" in keys or "const" in keys:
        values = keys["enum"] if "enum" in keys else [keys["const"]]
        texts = [value if isinstance(value, str) else pydantic_core.to_json(value).decode() for value in values]
        validator = SchemaValidator({"type": "dict", "keys_schema": core_schema})
        texts = [text for text in texts if _reads(validator, pydantic_core.to_json({text: None}))]
        if not texts:
            raise SchemaError(f"return_format has a dict with the keys {values}, and JSON has only strings: use these.")
        return {"enum": texts}
    kind = keys.get("type")
    if kind in ("array", "object", "null"):
        raise SchemaError(f"return_format has a dict with keys of type {kind}, and JSON has only strings: use these.")
    if kind == "integer" and max(keys.get("minimum", -1), keys.get("exclusiveMinimum", -1)) >= 0:
        return {"pattern": f"^{_INTEGER}$"}
    pattern = _PATTERNS_OF_KEYS.get(str(kind)) or _PATTERNS_OF_FORMATS.get(keys.get("format", ""))
    if pattern is not None:
        return {"pattern": pattern}
    return {name: keys[name] for name in ("minLength", "maxLength", "pattern", "format") if name in keys}


def _reads(validator: SchemaValidator, text: bytes) -> bool:
    try:
        validator.validate_json(text)
    except ValidationError:
        return False
    return True
