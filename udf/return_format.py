"""``return_format``: what holds the model's output, what type its column has, and how a text becomes a value."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jsonschema
from daft import DataType
from jsonschema.exceptions import best_match
from pydantic import BaseModel, ValidationError

from daft_vllm.engine import Constraint, ErrorValue
from daft_vllm.errors import SchemaError
from daft_vllm.udf.schema import column_type, to_column_value


class Parsed(NamedTuple):
    """A value for the column, or the reason why there is none."""

    value: Any
    error: ErrorValue | None = None


@dataclass(frozen=True)
class ReturnFormat:
    """What every answer of one expression has to be. Picklable.

    Args:
        constraint: what vLLM holds the output to. None: free text.
        dtype: type of the value's column.
        model: the Pydantic model that validates the output. None: ``constraint`` alone.
    """

    constraint: Constraint | None
    dtype: DataType
    model: type[BaseModel] | None = None

    @classmethod
    def of(cls, return_format: Any) -> ReturnFormat:
        """Understand the ``return_format`` argument of ``prompt()``.

        None: free text. A Pydantic model or a JSON Schema (a dict): a struct, or what
        ``daft_vllm.udf.schema.column_type`` says. ``Literal["a", "b"]``, an ``Enum`` with string values or a list of
        strings: one of them.

        Raises:
            SchemaError: it is none of these, or cannot be used; the message says why and what to write instead.
        """
        if return_format is None:
            return cls(None, DataType.string())
        if isinstance(return_format, type) and issubclass(return_format, BaseModel):
            return cls._of_schema(return_format.model_json_schema(), return_format)
        if isinstance(return_format, type) and issubclass(return_format, enum.Enum):
            return cls._of_choices([member.value for member in return_format])
        if get_origin(return_format) is Literal:
            return cls._of_choices(get_args(return_format))
        if isinstance(return_format, Mapping):
            return cls._of_schema(return_format, None)
        if isinstance(return_format, Sequence) and not isinstance(return_format, str):
            return cls._of_choices(return_format)
        raise SchemaError(
            f"return_format={return_format!r} is not understood. Use a Pydantic model, a JSON Schema as a dict, "
            'Literal["a", "b"], an Enum with string values, or a list of strings.'
        )

    @classmethod
    def _of_choices(cls, choices: Sequence[Any]) -> ReturnFormat:
        wrong = [choice for choice in choices if not isinstance(choice, str)]
        if wrong:
            raise SchemaError(f"choices are strings, got {wrong[0]!r}: write {str(wrong[0])!r}, or use a JSON Schema.")
        if not choices or "" in choices:
            raise SchemaError("return_format needs at least one choice, and no choice may be empty.")
        return cls(Constraint(choices=tuple(dict.fromkeys(choices))), DataType.string())

    @classmethod
    def _of_schema(cls, schema: Mapping[str, Any], model: type[BaseModel] | None) -> ReturnFormat:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as e:
            raise SchemaError(f"not a JSON Schema, at {e.json_path}: {e.message}") from None
        try:
            text = json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError) as e:
            raise SchemaError(f"the schema holds something that is not JSON: {e}") from None
        return cls(Constraint(json_schema=text), column_type(schema), model)

    def parse(self, text: str) -> Parsed:
        """Turn the model's text into a value of ``dtype``; an answer that doesn't satisfy the format is an error."""
        constraint = self.constraint
        if constraint is None:
            return Parsed(text)
        if constraint.choices is not None:
            if text in constraint.choices:
                return Parsed(text)
            return Parsed(None, ErrorValue("invalid_output", f"{text[:200]!r} is none of the choices"))
        try:
            if self.model is not None:
                value = self.model.model_validate_json(text).model_dump(mode="json", by_alias=True)
            else:
                value = json.loads(text)
                wrong = best_match(_validator(constraint.json_schema or "true").iter_errors(value))
                if wrong is not None:
                    return Parsed(None, ErrorValue("invalid_output", f"{wrong.json_path}: {wrong.message}"))
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            at = ".".join(map(str, first["loc"])) or "the whole"
            return Parsed(None, ErrorValue("invalid_output", f"{at}: {first['msg']}"))
        except ValueError as e:
            return Parsed(None, ErrorValue("invalid_output", f"not JSON: {e}"))
        try:
            return Parsed(to_column_value(value, self.dtype))
        except OverflowError as e:
            return Parsed(None, ErrorValue("invalid_output", str(e)))


@functools.lru_cache(maxsize=64)
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a schema that was checked before; ``jsonschema.validate`` checks it with each value."""
    return jsonschema.Draft202012Validator(json.loads(schema))
