"""Turns a validated Pydantic value into dicts, lists and scalars whose names are those of the type's JSON Schema.

Pydantic writes a value by its serialization names and serializers. The model and the column have the names of the JSON
Schema, which are the validation names. So the serializer here is made from the type's core schema, with the schema's
names and without what only changes how a value is written: serializers, excluded fields and computed fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import EncodedBytes, EncodedStr, TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaSerializer

from daft_vllm.errors import SchemaError

_FIELDS = ("model-field", "dataclass-field", "typed-dict-field")
_WITH_COMPUTED = ("model-fields", "dataclass-args", "typed-dict")
_SERIALIZERS = ("function-plain", "function-wrap", "any", "model")


class PlainValues:
    """Writes the values that an adapter validated.

    Raises:
        SchemaError: a field has no name under which a model could write it.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        schema = adapter.core_schema
        self._plain: Any = SchemaSerializer(_Renaming(_changes_value).of(schema))
        self._text: Any = SchemaSerializer(_Renaming(_is_users).of(schema))
        self._by_serializers: Any = SchemaSerializer(_Renaming(lambda serialization: False).of(schema))

    def of(self, value: Any) -> Any:
        """Return dicts, lists and scalars. Dates, decimals, enums and the like stay values of Python's types."""
        return self._plain.to_python(value, by_alias=True, warnings=False)

    def by_serializers(self, value: Any) -> Any:
        """Return the same with the user's serializers, for values of a class that only these can write.

        Raises:
            PydanticSerializationError: a serializer failed.
        """
        return self._by_serializers.to_python(value, mode="json", by_alias=True, warnings=False)

    def json(self, value: Any) -> str:
        """Return JSON text.

        Raises:
            PydanticSerializationError: JSON has no form for the value.
        """
        try:
            written: bytes = self._text.to_json(value, by_alias=True, round_trip=True, warnings=False)
        except PydanticSerializationError:
            written = self._by_serializers.to_json(value, by_alias=True, round_trip=True, warnings=False)
        return written.decode()


class _Instances(type):
    """A class that stands for ``model`` in a serializer's schema.

    With the class itself, pydantic-core would take the serializer that the class has already.
    """

    model: type[Any]

    def __instancecheck__(cls, value: Any) -> bool:
        return type(value) is cls.model


class _Renaming:
    """Makes a core schema whose fields are written under the names that they are validated by.

    Args:
        left_out: whether a part of a core schema is a serializer that the new one is to be without.
    """

    def __init__(self, left_out: Callable[[Any], bool]) -> None:
        self._left_out = left_out

    def of(self, schema: Any, config: Mapping[str, Any] | None = None) -> Any:
        """Return the changed schema. ``config`` is Pydantic's config of the model around it."""
        config = config or {}
        if isinstance(schema, list | tuple):
            return type(schema)(self.of(one, config) for one in schema)
        if not isinstance(schema, Mapping):
            return schema
        kind = schema.get("type")
        if isinstance(own := schema.get("config"), Mapping):
            config = own
        changed: dict[str, Any] = {}
        for key, part in schema.items():
            if key in ("metadata", "default", "config"):
                changed[key] = part
            elif key in ("fields", "choices") and isinstance(part, Mapping):
                changed[key] = {name: self.of(one, config) for name, one in part.items()}
            elif not key.startswith("serialization_"):
                changed[key] = self.of(part, config)
        if kind in _FIELDS:
            if (name := _schema_name(schema.get("validation_alias"), config)) is not None:
                changed["serialization_alias"] = name
            if schema.get("init") is False or _is_skipped(schema):  # no answer gives it
                changed["serialization_exclude"] = True
        elif kind in ("model", "dataclass"):
            changed["cls"] = _Instances(schema["cls"].__name__, (), {"model": schema["cls"]})
        if kind in _WITH_COMPUTED:
            changed.pop("computed_fields", None)
        serialization = schema.get("serialization")
        if _masks(serialization):
            changed["serialization"] = {"type": "function-plain", "function": _revealed}
        elif self._left_out(serialization):
            del changed["serialization"]
        return changed


def _is_users(serialization: Any) -> bool:
    """Whether this changes how a value is written. Pydantic has serializers of its own for lists, paths and more."""
    if not isinstance(serialization, Mapping) or serialization.get("type") not in _SERIALIZERS:
        return False
    module = getattr(serialization.get("function"), "__module__", None) or ""
    return not module.startswith("pydantic.")


def _changes_value(serialization: Any) -> bool:
    """Whether this writes another value than Python has: the user's serializers, and those of ``Base64Bytes``."""
    function = serialization.get("function") if isinstance(serialization, Mapping) else None
    return _is_users(serialization) or isinstance(getattr(function, "__self__", None), EncodedBytes | EncodedStr)


def _is_skipped(field: Mapping[str, Any]) -> bool:
    """Whether the JSON Schema lacks a field, because of ``SkipJsonSchema``."""
    part: Any = field
    while isinstance(part, Mapping):
        functions = (part.get("metadata") or {}).get("pydantic_js_annotation_functions", ())
        if any(type(getattr(function, "__self__", None)).__name__ == "SkipJsonSchema" for function in functions):
            return True
        part = part.get("schema")
    return False


def _masks(serialization: Any) -> bool:
    """Whether this is Pydantic's own serializer of secrets, which writes stars."""
    function = serialization.get("function") if isinstance(serialization, Mapping) else None
    return str(getattr(function, "__name__", "")).startswith("_serialize_secret")


def _revealed(secret: Any) -> Any:
    return secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret


def _schema_name(alias: Any, config: Mapping[str, Any]) -> str | None:
    """Return the name that Pydantic's JSON Schema gives to a field; None: the field's own.

    Args:
        alias: the field's validation alias: a name, a path, or a list of paths, which are choices. None: it has none.
        config: Pydantic's config of the model.

    Raises:
        SchemaError: the field is only read from inside of another one.
    """
    if alias is None or config.get("validate_by_alias") is False:
        return None
    if isinstance(alias, str):
        return alias
    for path in alias:
        if isinstance(path, list) and len(path) == 1 and isinstance(path[0], str):
            return path[0]
    if config.get("validate_by_name") or config.get("populate_by_name"):
        return None
    path = ", ".join(map(repr, alias[0] if isinstance(alias[0], list) else alias))
    raise SchemaError(
        f"return_format has a field that is read from a path only, AliasPath({path}), which no JSON Schema can say. "
        f"Give it a name too: validation_alias=AliasChoices('name', AliasPath({path}))."
    )
