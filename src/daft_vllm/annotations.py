"""Checks values by the annotations of fields, and says in words what an annotation allows."""

from __future__ import annotations

import collections.abc
import functools
import types
from collections.abc import Hashable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import ConfigDict, InstanceOf, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from daft_vllm.secrets import has_secrets

_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    None: "None",
    types.NoneType: "None",
    dict: "a dict",
    list: "a list",
    set: "a set",
    tuple: "a tuple",
    collections.abc.Mapping: "a dict",
    collections.abc.Sequence: "a list",
}
_INSTANCE: Any = InstanceOf()  # type: ignore[type-arg]  # with an argument it is an annotation
_LIMITS = {"ge": "of at least", "gt": "greater than", "le": "of at most", "lt": "less than"}


def allows(annotation: Any, value: Any) -> bool:
    """Whether a value is what an annotation says. Types are strict: ``"1"`` and ``True`` are no numbers."""
    try:
        _adapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def words(annotation: Any) -> str:
    """Return what an annotation allows: ``"a whole number of at least 1 or None"``."""
    found = list(dict.fromkeys(_parts(annotation)))
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def shown(value: Any) -> str:
    """Return a value for a message: as it is if it is short and no secret, else its type."""
    text = repr(value)
    plain = isinstance(value, (str, int, float, list, dict, tuple)) or value is None
    return text if plain and len(text) <= 60 and not has_secrets(value) else type(value).__name__


def _parts(annotation: Any) -> list[str]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [text for one in args[1:] for text in _limits(one)]
        return [" ".join([part, " and ".join(limits)]).strip() if limits else part for part in _parts(args[0])]
    if origin in (Union, types.UnionType):
        return [part for one in args for part in _parts(one)]
    if origin is Literal:
        return [repr(one) for one in args]
    if annotation is bool:
        return ["True", "False"]
    known = _WORDS.get(origin or annotation)
    if known is not None:
        return [known]
    name = getattr(annotation, "__name__", str(annotation))
    return ["a column" if name == "Expression" else name]


def _limits(constraint: Any) -> list[str]:
    if isinstance(constraint, FieldInfo):
        return [text for one in constraint.metadata for text in _limits(one)]
    if isinstance(constraint, (annotated_types.Ge, annotated_types.Gt, annotated_types.Le, annotated_types.Lt)):
        name = type(constraint).__name__.lower()
        return [f"{_LIMITS[name]} {getattr(constraint, name)}"]
    return []


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return _cached(annotation) if isinstance(annotation, Hashable) else _made(annotation)


@functools.lru_cache(maxsize=512)
def _cached(annotation: Any) -> TypeAdapter[Any]:
    return _made(annotation)


def _made(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_instances(annotation), config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _instances(annotation: Any) -> Any:
    """Return an annotation in which a class stands for its instances, whatever they hold."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[(_instances(args[0]), *args[1:])]
    if origin is Literal or annotation in (Any, Ellipsis):
        return annotation
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_instances, args))]  # noqa: UP007  (made while it runs)
    if origin is collections.abc.Sequence:  # a text is one too, but never meant
        inner: Any = _instances(args[0])
        return types.GenericAlias(list, (inner,)) | types.GenericAlias(tuple, (inner, ...))
    if origin is not None:
        return origin[tuple(map(_instances, args))]
    return annotation if annotation in _WORDS else Annotated[(annotation, _INSTANCE)]
