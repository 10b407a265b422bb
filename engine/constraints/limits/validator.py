"""Validates answers against a JSON Schema: formats are checked, decimal fractions are exact, and the work is limited.

jsonschema's own validator searches patterns with Python's ``re``, compares the items of a list in pairs, and follows
references as often as they come up: in a recursive choice, twice as often with each level of an answer.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Iterable, Iterator
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

import jsonschema
from jsonschema.exceptions import best_match
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable

from daft_vllm.engine.constraints.limits.equality import value_key
from daft_vllm.engine.constraints.limits.killable import CallFailed, KillableFunction
from daft_vllm.engine.constraints.limits.matcher import matcher
from daft_vllm.engine.constraints.limits.work import limited_work, spend
from daft_vllm.errors import SchemaError

_SECONDS = 5.0
"""How long the references of one answer may be followed."""
_Errors = Iterator[jsonschema.ValidationError]


class Wrong(NamedTuple):
    """What is wrong with an answer: JSON path and message."""

    path: str
    message: str


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> _Errors:
    """Compute with the decimal digits as written. In binary fractions, 2.13 would not be a multiple of 0.01."""
    if not validator.is_type(value, "number"):
        return
    with localcontext() as context:
        context.prec = 700  # digits, enough for 1e308 divided by the smallest step
        if Decimal(str(value)) % Decimal(str(step)):
            yield jsonschema.ValidationError(f"{value!r} is not a multiple of {step}")


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterable[jsonschema.ValidationError]:
    if not isinstance(value, str) or matcher(pattern)(value):
        return ()
    return (jsonschema.ValidationError(f"{value!r} does not match {pattern!r}"),)


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> _Errors:
    if not validator.is_type(value, "object"):
        return
    for pattern, part in patterns.items():
        found = matcher(pattern)
        for key, item in value.items():
            if found(key):
                yield from validator.descend(item, part, path=key, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, value: Any, schema: Any) -> _Errors:
    if not isinstance(value, dict):
        return
    others = value.keys() - schema.get("properties", {})
    if not others:
        return
    found = [matcher(pattern) for pattern in schema.get("patternProperties", ())]
    others = [key for key in value if key in others and not any(one(key) for one in found)]
    if validator.is_type(part, "object"):
        for key in others:
            yield from validator.descend(value[key], part, path=key)
    elif part is False and others:
        listed = ", ".join(map(repr, others[:5]))
        yield jsonschema.ValidationError(f"it has keys that are not allowed: {listed}{', ...' * (len(others) > 5)}")


def _unique_items(validator: Any, unique: Any, value: Any, schema: Any) -> _Errors:
    if not unique or not isinstance(value, list) or len(value) < 2:
        return
    if len(set(map(value_key, value))) < len(value):
        yield jsonschema.ValidationError(f"{value!r} has equal items")


def _reference(validator: Any, reference: str, value: Any, schema: Any) -> _Errors:
    spend(1, reference)
    errors: _Errors = validator._validate_reference(ref=reference, instance=value)
    return errors


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "$ref": _reference,
        "$dynamicRef": _reference,
    },
)


def validator_of(schema: Any) -> Any:
    """Return the validator of a schema (draft 2020-12). The schema itself must have been checked before.

    A format is checked only if the package that knows it is installed: ``pip install "daft-vllm[formats]"``.
    """
    return _Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def reference_exists(schema: Any, reference: str) -> bool:
    """Whether the target of a reference exists in a schema."""
    try:
        validator_of(schema)._resolver.lookup(reference)
    except Unresolvable:
        return False
    return True


def find_wrong(schema: str, value: Any) -> Wrong | None:
    """Return what is wrong with an answer, None if it is valid.

    Args:
        schema: the schema, as text. It must have been checked before.
        value: the answer, parsed.

    Raises:
        ValueError: it takes too long to find out.
    """
    if '"unevaluated' not in schema:
        return _find_wrong_here(schema, value)
    try:  # for these keywords, jsonschema searches patterns and follows references by itself
        wrong: Wrong | None = _find_wrong_elsewhere(schema, value)
        return wrong
    except CallFailed as e:
        raise ValueError(f"the answer can't be checked: {e}") from None


def _find_wrong_here(schema: str, value: Any) -> Wrong | None:
    try:
        with limited_work(_SECONDS):
            error = best_match(_validator(schema).iter_errors(value))
    except SchemaError as e:
        raise ValueError(f"the answer can't be checked: {e}") from None
    return None if error is None else Wrong(error.json_path, error.message)


_find_wrong_elsewhere = KillableFunction(pickle.dumps(_find_wrong_here))


@functools.lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    """Return the validator of a schema that was checked before. ``jsonschema.validate`` checks it for each value."""
    return validator_of(json.loads(schema))
