"""When JSON values are equal."""

from __future__ import annotations

import json
import math
from typing import Any


def value_key(value: Any) -> str:
    """Return a text that is the same for equal JSON values: for 1 and 1.0, but not for 1 and true."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    return value
