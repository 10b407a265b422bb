"""``return_format``: the constraint on the model's output, the type of its column, and how a text becomes a value."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jsonschema
import pydantic_core
from daft import DataType
from daft.pickle import dumps
from pydantic import TypeAdapter, ValidationError

from daft_vllm.engine import Constraint, ErrorValue, Outcome
from daft_vllm.engine.constraints.constraint import BackendChoice
from daft_vllm.engine.constraints.limits.extent import check_extent
from daft_vllm.engine.constraints.limits.killable import CallFailed, KillableFunction
from daft_vllm.engine.constraints.limits.matcher import matcher
from daft_vllm.engine.constraints.limits.validator import find_wrong
from daft_vllm.engine.constraints.limits.work import limited_work
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.daft_schema import daft_type_of, schema_of_daft_type
from daft_vllm.udf.answers.formats import Choice, Grammar, Json, PerRow, Regex, Tools, is_tool
from daft_vllm.udf.answers.mistakes import refuse_mistaken, refuse_no_schema
from daft_vllm.udf.answers.plain import PlainValues
from daft_vllm.udf.answers.risk import ValidationRisk
from daft_vllm.udf.answers.schema import column_type_and_json
from daft_vllm.udf.answers.type_schema import forget_surroundings, schema_of_type, type_adapter
from daft_vllm.udf.answers.values import Convert, column_converter


class Parsed(NamedTuple):
    """A value for the column, or the reason why there is none."""

    value: Any
    error: ErrorValue | None = None


@dataclass(frozen=True)
class ReturnFormat:
    """The format that every answer of one expression must have. Picklable.

    Args:
        constraint: the constraint that vLLM enforces on the output. None: free text.
        dtype: type of the value's column.
        python_type: the type that validates the output. None: only ``constraint`` does.
        json_text: JSON pointers of the parts that the column holds as JSON text.
        forms: the formats by name, if each row has its own. Then ``constraint`` is None and ``dtype`` a struct of them.
    """

    constraint: Constraint | None
    dtype: DataType
    python_type: Any = None
    json_text: list[str] = field(default_factory=list, compare=False)
    forms: Mapping[str, ReturnFormat] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        return_format: Any,
        *,
        enforce: Literal["strict", "validate"] = "strict",
        backend: BackendChoice = "auto",
    ) -> ReturnFormat:
        """Return the format for the ``return_format`` argument of ``prompt()``. That function's docstring lists them.

        Raises:
            SchemaError: it is not one of them, or can't be used. The message says why, and what to write instead.
        """
        if isinstance(return_format, PerRow):
            forms = {n: cls.of(f, enforce=enforce, backend=backend) for n, f in return_format.formats.items()}
            dtype = DataType.struct({name: form.dtype for name, form in forms.items()})
            pointers = [f"/{name}{pointer.rstrip('/')}" for name, form in forms.items() for pointer in form.json_text]
            return cls(None, dtype, json_text=pointers, forms=forms)
        with limited_work():
            form = cls._of_argument(return_format)
        if form.constraint is None:
            return form
        return replace(form, constraint=replace(form.constraint, enforce=enforce, backend=backend))

    @classmethod
    def _of_argument(cls, given: Any) -> ReturnFormat:
        text = DataType.string()
        if given is None or given is str:
            return cls(None, text)
        if isinstance(given, Regex):
            return cls(Constraint(regex=given.pattern), text)
        if isinstance(given, Grammar):
            return cls(Constraint(grammar=given.text), text)
        if isinstance(given, Json) or given is Json:
            return cls._of_schema({})
        if isinstance(given, Tools):
            return cls._of_tools(given)
        refuse_mistaken(given)
        choices = _choices(given)
        if choices is not None:
            return cls(Constraint(choices=tuple(dict.fromkeys(choices.choices))), text)
        if isinstance(given, Mapping):
            return cls._of_schema(given)
        if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".json")):
            return cls._of_schema(_read(Path(given)))
        if isinstance(given, Sequence) and not isinstance(given, str) and all(map(is_tool, given)):
            return cls._of_tools(Tools(given))
        dtype = daft_type_of(given)
        if dtype is not None:
            return cls(Constraint(json_schema=json.dumps(schema_of_daft_type(dtype))), dtype)
        if isinstance(given, str | bytes | int | float | Sequence):
            raise SchemaError(
                f"return_format={given!r} is not understood. Use a Pydantic model or another type (list[int], a "
                "dataclass, a TypedDict), a JSON Schema as a dict or a .json file, a Daft or Arrow type, "
                'Literal["a", "b"], a list of strings, Regex, Grammar, Json or Tools.'
            )
        schema = schema_of_type(given)
        check_extent(schema)
        forget_surroundings(given)
        dtype, json_text = column_type_and_json(schema)
        form = cls(Constraint(json_schema=json.dumps(schema, ensure_ascii=False)), dtype, given, json_text)
        _ = form._plain  # refuses a field that has no name in the schema
        return form

    @classmethod
    def _of_schema(cls, schema: Mapping[str, Any]) -> ReturnFormat:
        check_extent(schema)
        refuse_no_schema(schema)
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as e:
            raise SchemaError(f"not a JSON Schema, at {e.json_path}: {_why_no_schema(e)}") from None
        try:
            text = json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError) as e:
            raise SchemaError(f"the schema holds something that is not JSON: {e}") from None
        constraint = Constraint(json_schema=text)
        dtype, json_text = column_type_and_json(schema)
        return cls(constraint, dtype, json_text=json_text)

    @classmethod
    def _of_tools(cls, tools: Tools) -> ReturnFormat:
        form = cls._of_schema(tools.schema())
        call = DataType.struct({"name": DataType.string(), "arguments": DataType.string()})
        return replace(form, dtype=call, json_text=["/arguments"])

    @property
    def constraints(self) -> list[Constraint]:
        """The constraints on answers: one for each format, if each row has its own."""
        return [form.constraint for form in (self.forms or {"": self}).values() if form.constraint is not None]

    def of_row(self, name: str | None) -> ReturnFormat:
        """Return the format of a row.

        Raises:
            SchemaError: there is no format of this name.
        """
        if not self.forms:
            return self
        if name is None or name not in self.forms:
            raise SchemaError(f"there is no format {name!r}: the column must name one of {', '.join(self.forms)}.")
        return self.forms[name]

    def parse_row(self, name: str | None, text: str) -> Parsed:
        """Parse the text of a row with the format ``name``, as ``parse`` does."""
        if not self.forms:
            return self.parse(text)
        parsed = self.of_row(name).parse(text)
        return parsed if parsed.error is not None else Parsed({**dict.fromkeys(self.forms), str(name): parsed.value})

    def parse_outcome(self, name: str | None, outcome: Outcome) -> Parsed:
        """Return the value of a row with the format ``name``. An outcome with an error stays an error."""
        if outcome.error is not None or outcome.text is None:
            return Parsed(None, outcome.error)
        return self.parse_row(name, outcome.text)

    def parse(self, text: str) -> Parsed:
        """Turn the model's text into a value of ``dtype``. A text that doesn't satisfy the format becomes an error.

        So does a text with which anything else goes wrong: models write what validators don't expect.
        """
        try:
            if self.python_type is not None and self._risk.is_in(text):
                parsed: Parsed = self._parse_elsewhere(text)
                return parsed
            return self._parse_here(text)
        except CallFailed as e:
            return invalid(f"the answer can't be checked: {e}")
        except Exception as e:
            return invalid(reason_of(e))

    def _parse_here(self, text: str) -> Parsed:
        constraint = self.constraint
        if constraint is None:
            return Parsed(text)
        if constraint.choices is not None:
            allowed = text in constraint.choices
            return Parsed(text) if allowed else invalid(f"{text[:200]!r} is none of the choices")
        if constraint.regex is not None:
            matches = matcher(constraint.regex, whole=True)(text)
            return Parsed(text) if matches else invalid(f"the pattern doesn't match {text[:200]!r}")
        if constraint.grammar is not None:
            return Parsed(text)  # only the backend can check it, and it allowed nothing else
        if self.python_type is not None:
            try:
                return Parsed(self._column_value(self.python_value(text)))
            except Exception as e:
                return invalid(reason_of(e))  # in words, since not every exception can be pickled
        value = pydantic_core.from_json(text, allow_inf_nan=False)
        wrong = find_wrong(constraint.json_schema or "true", value)
        return Parsed(self._convert(value)) if wrong is None else invalid(f"{wrong.path}: {wrong.message}")

    def python_value(self, text: str) -> Any:
        """Return a text that ``parse`` accepted as a value of ``python_type``; without such a type, the text itself."""
        return text if self.python_type is None else self._adapter.validate_json(text)

    def write(self, value: Any) -> str:
        """Return a value as the JSON text that a model would write.

        Raises:
            PydanticSerializationError: JSON has no form for the value.
        """
        return (
            pydantic_core.to_json(value, by_alias=True).decode()
            if self.python_type is None
            else self._plain.json(value)
        )

    def _column_value(self, validated: Any) -> Any:
        """Return a value of ``python_type`` as the column holds it. A class of the user's may need its serializer."""
        try:
            return self._convert(self._plain.of(validated))
        except Exception:
            with contextlib.suppress(Exception):  # the first reason is the one that helps
                return self._convert(self._plain.by_serializers(validated))
            raise

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return type_adapter(self.python_type)

    @functools.cached_property
    def _plain(self) -> PlainValues:
        return PlainValues(self._adapter)

    @functools.cached_property
    def _convert(self) -> Convert:
        return column_converter(self.dtype, self.json_text)

    @functools.cached_property
    def _risk(self) -> ValidationRisk:
        return ValidationRisk.of(self._adapter.core_schema)

    @functools.cached_property
    def _parse_elsewhere(self) -> KillableFunction:
        return KillableFunction(dumps(self._parse_here))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what doesn't pickle, and can be made again."""
        return {name: value for name, value in self.__dict__.items() if name not in _MADE_AGAIN}


_MADE_AGAIN = ("_adapter", "_plain", "_convert", "_risk", "_parse_elsewhere")


def invalid(message: str) -> Parsed:
    """Return the error of an answer that can't be used."""
    return Parsed(None, ErrorValue("invalid_output", message))


def reason_of(error: Exception) -> str:
    """Return what went wrong with an answer, whatever a user's exception does when it is written."""
    try:
        if isinstance(error, RecursionError):
            return "it is nested too deeply"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
        text = str(error)
    except Exception:
        return type(error).__name__
    return text if isinstance(error, ValueError | TypeError | ArithmeticError) else f"{type(error).__name__}: {text}"


def _why_no_schema(error: jsonschema.SchemaError) -> str:
    if error.validator != "format" or error.validator_value != "regex":
        return str(error.message)
    try:
        re.compile(str(error.instance))
    except re.error as e:
        return f"{error.instance!r} is not a regular expression in Python's syntax: {e}."
    return str(error.message)


def _choices(given: Any) -> Choice | None:
    """Return the strings that a format lists, else None. An enum or ``Literal`` of other values becomes JSON."""
    if isinstance(given, Choice):
        return given
    if isinstance(given, type) and issubclass(given, enum.Enum):
        values: list[Any] = [member.value for member in given]
        return Choice(values) if all(isinstance(value, str) for value in values) else None
    if get_origin(given) is Literal:
        values = list(get_args(given))
        return Choice(values) if all(isinstance(value, str) for value in values) else None
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return Choice(given) if is_list and not (given and all(map(is_tool, given))) else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        schema = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as e:
        raise SchemaError(f"the JSON Schema {str(path)!r} can't be read: {e.strerror or e}.") from None
    except ValueError as e:
        raise SchemaError(f"{str(path)!r} is not JSON: {e}.") from None
    if not isinstance(schema, Mapping):
        raise SchemaError(f"{str(path)!r} holds no JSON Schema: it must be an object, got {type(schema).__name__}.")
    return schema
