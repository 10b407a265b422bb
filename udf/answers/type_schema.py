"""Turns a Python type into a JSON Schema that a model can fill in and a Daft column can hold."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import typing_extensions
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue

from daft_vllm.engine.constraints.formats import CLOCK_PATTERN, LOCAL_DATE_TIME_PATTERN, url_pattern
from daft_vllm.engine.constraints.limits.work import spend
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.readable import check_readable, keys_of_dict

TYPE_HINT = "x-daft-type"
"""An extra schema keyword: the column's type, where the other keywords don't say it."""
NAMES_HINT = "x-daft-names"
"""An extra schema keyword: the names of a tuple's fields."""
_WIDEST_DECIMAL = (38, 9)
"""All digits, and digits after the point, of a ``Decimal`` without bounds. Arrow's decimal128 holds at most 38."""
_TIME_OF_DURATION = "([0-9]{1,2}H([0-9]{1,2}M)?([0-9]{1,2}S)?|[0-9]{1,2}M([0-9]{1,2}S)?|[0-9]{1,2}S)"
_DURATION_PATTERN = f"^P([0-9]{{1,6}}D(T{_TIME_OF_DURATION})?|T{_TIME_OF_DURATION})$"
_BASE64_PATTERN = (
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"  # no unused bits are set
)
_ENCODED = {"base64": _BASE64_PATTERN, "base64url": _BASE64_PATTERN.replace("+/", "_-")}


class ColumnSchema(GenerateJsonSchema):
    """Pydantic's generator, changed where a grammar can't enforce a type's schema, or it says less than the type."""

    _core_definitions: Mapping[str, Any] = MappingProxyType({})

    @property
    def mode(self) -> JsonSchemaMode:
        """Whose names the schema has: a model writes what is validated, whatever ``json_schema_mode_override`` says."""
        return "validation"

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a part. What ``Base64Bytes`` and its like read has a pattern."""
        made = super().generate_inner(schema)
        pattern = _ENCODED.get(made.get("format", "")) if "pattern" not in made else None
        if pattern is None or "minLength" in made or "maxLength" in made:
            return made
        return {**{name: value for name, value in made.items() if name != "format"}, "pattern": pattern}

    def definitions_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a part that has definitions, and remember them."""
        self._core_definitions = {one["ref"]: one for one in schema["definitions"]}
        return super().definitions_schema(schema)

    def literal_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the values of a ``Literal``. All of them can be read from JSON."""
        made = super().literal_schema(schema)
        check_readable(schema, schema["expected"], made["enum"] if "enum" in made else [made["const"]])
        return made

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the values of an enum. All of them can be read from JSON."""
        made = super().enum_schema(schema)
        if not made["enum"]:
            raise SchemaError(f"return_format has the enum {made['title']!r}, which has no members.")
        check_readable(schema, schema["members"], made["enum"])
        return made

    def is_subclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Refuse a type whose values are classes."""
        raise SchemaError(f"return_format has a field of classes, type[{schema['cls'].__name__}], which JSON hasn't.")

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        """Return an object. Its keys are those that can be read, where they aren't strings in Python."""
        return self._with_keys(schema, super().dict_schema(schema))

    def frozendict_schema(self, schema: Any) -> JsonSchemaValue:
        """Return an object, as ``dict_schema`` does."""
        return self._with_keys(schema, super().frozendict_schema(schema))

    def ordered_dict_schema(self, schema: Any) -> JsonSchemaValue:
        """Return an object, as ``dict_schema`` does."""
        return self._with_keys(schema, super().ordered_dict_schema(schema))

    def counter_schema(self, schema: Any) -> JsonSchemaValue:
        """Return an object, as ``dict_schema`` does."""
        return self._with_keys(schema, super().counter_schema(schema))

    def _with_keys(self, schema: Any, made: JsonSchemaValue) -> JsonSchemaValue:
        """Put the schema of the keys, which are texts in JSON, in place of Pydantic's."""
        made.pop("propertyNames", None)
        if "keys_schema" not in schema:
            return made
        core = schema["keys_schema"]
        core = self._core_definitions.get(core.get("schema_ref"), core)
        keys = self.generate_inner(core)
        if "$ref" in keys:
            keys = self.get_schema_from_definitions(keys["$ref"]) or {}
        names = keys_of_dict(core, keys)
        values = next(iter(made.pop("patternProperties", {}).values()), made.get("additionalProperties"))
        if names.keys() == {"pattern"}:  # more libraries enforce it so
            return {**made, "patternProperties": {names["pattern"]: values}, "additionalProperties": False}
        return {**made, "additionalProperties": values, **({"propertyNames": names} if names else {})}

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a string with a limited number of digits, since a JSON number isn't exact."""
        digits, places = _WIDEST_DECIMAL
        if schema.get("max_digits") is not None:
            digits, places = schema["max_digits"], min(places, schema["max_digits"])
        places = schema["decimal_places"] if schema.get("decimal_places") is not None else places
        if digits > _WIDEST_DECIMAL[0]:
            raise SchemaError(f"a decimal column holds at most {_WIDEST_DECIMAL[0]} digits, got max_digits={digits}.")
        whole = digits - places
        sign = "" if min(map(float, (schema.get("ge", -1), schema.get("gt", -1)))) >= 0 else "-?"
        before = f"(0|[1-9][0-9]{{0,{whole - 1}}})" if whole > 0 else "0"
        after = f"(\\.[0-9]{{1,{places}}})?" if places else ""
        return {
            "type": "string",
            "pattern": f"^{sign}{before}{after}$",
            TYPE_HINT: f"decimal({digits},{places})",
        }

    def datetime_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a date and time, with an offset only if the type requires one."""
        if schema.get("tz_constraint") not in (None, "naive"):
            return {"type": "string", "format": "date-time"}
        return {"type": "string", "pattern": LOCAL_DATE_TIME_PATTERN, TYPE_HINT: "timestamp"}

    def time_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a time without an offset, since a column of times can't hold one."""
        return {"type": "string", "pattern": CLOCK_PATTERN, TYPE_HINT: "time"}

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a duration in days and smaller units, since months have no fixed length."""
        return {"type": "string", "pattern": _DURATION_PATTERN, TYPE_HINT: "duration"}

    def bytes_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a string. The column holds its UTF-8 bytes, or those that it encodes if ``val_json_bytes`` says so."""
        least, most = schema.get("min_length", 0), schema.get("max_length")
        encoding = self._config.val_json_bytes
        if encoding == "hex":
            count = f"{{{least},{'' if most is None else most}}}"
            return {"type": "string", "pattern": f"^([0-9a-f]{{2}}){count}$", TYPE_HINT: "binary"}
        if encoding == "base64":
            if least or most is not None:
                raise SchemaError(
                    "return_format has bytes in base64 with min_length or max_length, which no grammar counts. "
                    "Leave the lengths out, or use val_json_bytes='hex'."
                )
            return {"type": "string", "pattern": _BASE64_PATTERN, TYPE_HINT: "binary"}
        generated = super().bytes_schema(schema)
        return {**{name: value for name, value in generated.items() if name != "format"}, TYPE_HINT: "binary"}

    def url_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a URL with a host name. Its scheme is ``http`` or ``https`` unless the type names others."""
        return {"type": "string", "pattern": url_pattern(list(schema.get("allowed_schemes") or ("http", "https")))}

    def field_is_present(self, field: Any) -> bool:
        """Leave out the fields of a dataclass that its ``__init__`` doesn't take."""
        if field.get("init_only"):
            raise SchemaError(
                f"return_format has the InitVar {field['name']!r}, which a value doesn't keep: use a field."
            )
        return field.get("init") is not False and super().field_is_present(field)

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        """Return an array, with the fields' names under ``NAMES_HINT``, since a JSON array has no names."""
        return {**super().named_tuple_schema(schema), NAMES_HINT: [field["name"] for field in schema["fields"]]}


def type_adapter(python_type: Any) -> TypeAdapter[Any]:
    """Return the adapter that validates values of a type.

    Raises:
        SchemaError: Pydantic doesn't understand the type.
    """
    try:
        return TypeAdapter(_with_readable_typed_dicts(python_type))
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as e:
        raise SchemaError(f"return_format={python_type!r} is not understood: {str(e).splitlines()[0]}") from e


def _with_readable_typed_dicts(given: Any) -> Any:
    """Replace each ``typing.TypedDict`` in a type by its backport: Pydantic reads no other before Python 3.12."""
    spend(10, "return_format")
    if typing.is_typeddict(given) and type(given).__module__ == "typing" and sys.version_info < (3, 12):
        hints = typing.get_type_hints(given, include_extras=True)
        fields = {
            name: typing_extensions.Required[kind] if name in given.__required_keys__ else typing.NotRequired[kind]
            for name, kind in ((name, _with_readable_typed_dicts(hint)) for name, hint in hints.items())
        }
        copy = typing_extensions.TypedDict(given.__name__, fields)  # type: ignore[misc]
        copy.__doc__ = given.__doc__
        return copy
    arguments = typing.get_args(given)
    if typing.get_origin(given) is typing.Annotated:
        return typing.Annotated[(_with_readable_typed_dicts(arguments[0]), *arguments[1:])]
    if arguments and typing.get_origin(given) in (list, dict, tuple, set, typing.Union, types.UnionType):
        parts = tuple(map(_with_readable_typed_dicts, arguments))
        if parts != arguments:
            origin = typing.get_origin(given)
            return typing.Union[parts] if origin in (typing.Union, types.UnionType) else origin[parts]  # noqa: UP007
    return given


def forget_surroundings(python_type: Any) -> None:
    """Make a Pydantic model that was defined in a function forget the function's other names.

    The model keeps them to resolve annotations. They are pickled with it for a worker, even engines and open files.
    """
    if isinstance(python_type, type) and issubclass(python_type, BaseModel):
        if not python_type.__pydantic_complete__ or python_type.__pydantic_parent_namespace__ is None:
            return
        python_type.__pydantic_parent_namespace__ = None
        for field in python_type.model_fields.values():
            forget_surroundings(field.annotation)
    for part in typing.get_args(python_type):
        forget_surroundings(part)


def schema_of_type(python_type: Any) -> dict[str, Any]:
    """Return the JSON Schema of what ``type_adapter`` validates.

    Raises:
        SchemaError: the type has no JSON Schema.
    """
    try:
        return type_adapter(python_type).json_schema(schema_generator=ColumnSchema)
    except PydanticUserError as e:
        raise SchemaError(f"return_format={python_type!r} has no JSON Schema: {str(e).splitlines()[0]}") from e
