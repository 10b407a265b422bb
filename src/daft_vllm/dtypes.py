"""What is inside of Daft's nested types."""

from __future__ import annotations

from collections.abc import Callable

from daft import DataType


def holds(dtype: DataType, wanted: Callable[[DataType], bool]) -> bool:
    """Whether a type, or one of those inside of it, is wanted. Lists, structs and maps are looked into."""
    if dtype.is_list() or dtype.is_fixed_size_list():
        inside = [dtype.dtype]
    elif dtype.is_map():
        inside = [dtype.key_type, dtype.value_type]
    elif dtype.is_struct():
        inside = list(dtype.fields.values())
    else:
        return wanted(dtype)
    return any(holds(one, wanted) for one in inside)
