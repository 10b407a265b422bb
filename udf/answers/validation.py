"""JSON Schema validation as answers need it: formats are checked, and decimal fractions are exact."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Decide as the text says: in binary fractions 2.13 would be no multiple of 0.01."""
    if not validator.is_type(value, "number"):
        return
    with localcontext() as context:
        context.prec = 700  # 1e308 over the smallest step
        if Decimal(str(value)) % Decimal(str(step)):
            yield jsonschema.ValidationError(f"{value!r} is not a multiple of {step}")


_Validator: Any = extend(jsonschema.Draft202012Validator, {"multipleOf": _multiple_of})  # type: ignore[no-untyped-call]


def is_resolved(schema: Any, reference: str) -> bool:
    """Whether a reference in a schema leads somewhere."""
    try:
        validator_of(schema)._resolver.lookup(reference)
    except Unresolvable:
        return False
    return True


def validator_of(schema: Any) -> Any:
    """Return what checks values against a schema (draft 2020-12) that was checked itself before.

    Formats are checked as far as the packages that know them are installed: ``pip install "daft-vllm[formats]"``.
    """
    return _Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
