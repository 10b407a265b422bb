"""Validates answers against a JSON Schema: formats are checked, and decimal fractions are exact."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Compute with the decimal digits as written. In binary fractions, 2.13 would not be a multiple of 0.01."""
    if not validator.is_type(value, "number"):
        return
    with localcontext() as context:
        context.prec = 700  # digits, enough for 1e308 divided by the smallest step
        if Decimal(str(value)) % Decimal(str(step)):
            yield jsonschema.ValidationError(f"{value!r} is not a multiple of {step}")


_Validator: Any = extend(jsonschema.Draft202012Validator, {"multipleOf": _multiple_of})  # type: ignore[no-untyped-call]


def reference_exists(schema: Any, reference: str) -> bool:
    """Whether the target of a reference exists in a schema."""
    try:
        validator_of(schema)._resolver.lookup(reference)
    except Unresolvable:
        return False
    return True


def validator_of(schema: Any) -> Any:
    """Return the validator of a schema (draft 2020-12). The schema itself must have been checked before.

    A format is checked only if the package that knows it is installed: ``pip install "daft-vllm[formats]"``.
    """
    return _Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
