"""Return formats that no Python type expresses: ``Regex``, ``Choice``, ``Grammar``, ``Json``, ``Tools``, ``PerRow``."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import daft
from pydantic import BaseModel

from daft_vllm.engine.constraints.limits.extent import check_extent, check_pattern
from daft_vllm.errors import SchemaError, suggest
from daft_vllm.udf.answers.type_schema import schema_of_type


@dataclass(frozen=True)
class Regex:
    """Answers that match a regular expression from beginning to end, in a string column.

    Args:
        pattern: in Python's syntax, without lookaround, back references, word boundaries and flags.
    """

    pattern: str

    def __post_init__(self) -> None:
        if isinstance(self.pattern, str):
            check_pattern(self.pattern, "Regex")
        try:
            re.compile(self.pattern)
        except (re.error, TypeError, OverflowError) as e:
            raise SchemaError(f"Regex({self.pattern!r}) is not a regular expression: {e}") from None


@dataclass(frozen=True)
class Choice:
    """Answers that are one of a few texts, in a string column. The same as a plain list of strings.

    Args:
        choices: the answers allowed.
    """

    choices: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        wrong = [choice for choice in self.choices if not isinstance(choice, str)]
        if wrong:
            raise SchemaError(f"choices are strings, got {wrong[0]!r}: write {str(wrong[0])!r}, or use a JSON Schema.")
        if not self.choices or "" in self.choices:
            raise SchemaError("return_format needs at least one choice, and no choice may be empty.")
        twice = next((one for one, number in Counter(self.choices).items() if number > 1), None)
        if twice is not None:
            raise SchemaError(f"{twice!r} is among the choices more than once: leave it out once.")


@dataclass(frozen=True)
class Grammar:
    """Answers that follow a grammar, in a string column.

    Args:
        text: EBNF with the rule ``root ::= ...`` (xgrammar's, like llama.cpp's GBNF), or Lark with ``start: ...``.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise SchemaError('Grammar needs the text of a grammar, such as \'root ::= "yes" | "no"\'.')


@dataclass(frozen=True)
class Json:
    """Any JSON value, as JSON text in a string column."""


class Tools:
    """One call of one of several functions: a struct of ``name`` and ``arguments`` (JSON text).

    Args:
        tools: functions with type hints, Pydantic models, or dicts in OpenAI's form,
            ``{"type": "function", "function": {"name": ..., "description": ..., "parameters": {JSON Schema}}}``.

    Raises:
        SchemaError: a tool is none of these, two have the same name, or the list is empty.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        self.tools = [_tool(one) for one in tools]
        for tool in self.tools:
            check_extent(tool["parameters"])
        names = [tool["name"] for tool in self.tools]
        twice = [name for name in names if names.count(name) > 1]
        if not names or twice:
            raise SchemaError(f"Tools needs functions of different names, got {names}.")

    @property
    def names(self) -> list[str]:
        """The tools' names."""
        return [tool["name"] for tool in self.tools]

    def only(self, name: str) -> Tools:
        """Return ``Tools`` with only the tool of this name.

        Raises:
            SchemaError: there is no tool of this name.
        """
        if name not in self.names:
            raise SchemaError(
                f"there is no tool {name!r}.{suggest(name, self.names)} There are {', '.join(self.names)}."
            )
        return Tools([tool for tool in self.tools if tool["name"] == name])

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a call."""
        calls = []
        definitions: dict[str, Any] = {}
        for tool in self.tools:
            parameters, own = _split_definitions(tool["parameters"], f"{tool['name']}.")
            definitions |= own
            properties = {"name": {"const": tool["name"]}, "arguments": parameters}
            call = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
            described = {"description": tool["description"]} if tool["description"] else {}
            calls.append({**described, **call, "additionalProperties": False})
        return {"anyOf": calls, **({"$defs": definitions} if definitions else {})}


class PerRow:
    """A format for each row, named in a column. The value is a struct with a field per format; all but one are null.

    Args:
        column: a string column of names.
        formats: formats as ``return_format`` takes them, by name. A row with any other name is an error value.
    """

    def __init__(self, column: daft.Expression, formats: Mapping[str, Any]) -> None:
        if not isinstance(column, daft.Expression) or not formats or not all(isinstance(name, str) for name in formats):
            raise SchemaError('PerRow takes a column and formats by name: PerRow(col("kind"), {"invoice": Invoice}).')
        self.column = column
        self.formats = dict(formats)


def _tool(given: Any) -> dict[str, Any]:
    """Return name, description and parameters of one tool."""
    if isinstance(given, Mapping):
        function = given.get("function", given)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            no_parameters = {"type": "object", "properties": {}, "additionalProperties": False}
            return {
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": function.get("parameters") or no_parameters,
            }
    elif isinstance(given, type) and issubclass(given, BaseModel):
        return {"name": given.__name__, "description": given.__doc__ or "", "parameters": schema_of_type(given)}
    elif isinstance(given, Callable) and not isinstance(given, type):  # type: ignore[arg-type]
        schema = schema_of_type(given)
        if schema.get("type") != "object":
            raise SchemaError(f"the tool {given.__name__}() has parameters without names: use named parameters only.")
        return {"name": given.__name__, "description": inspect.getdoc(given) or "", "parameters": schema}
    raise SchemaError(
        f"{given!r} is no tool. Use functions with type hints, Pydantic models, or dicts such as "
        '{"type": "function", "function": {"name": "search", "parameters": {...}}}.'
    )


def is_tool(given: Any) -> bool:
    """Whether an item of a list shows that it is a list of tools."""
    if isinstance(given, Mapping):
        return "function" in given or "parameters" in given
    return inspect.isfunction(given) or (isinstance(given, type) and issubclass(given, BaseModel))


def _split_definitions(schema: Mapping[str, Any], prefix: str) -> tuple[Any, dict[str, Any]]:
    """Return a schema without its definitions, and the definitions under names that begin with ``prefix``."""

    def renamed(part: Any) -> Any:
        if isinstance(part, Mapping):
            found = {name: renamed(value) for name, value in part.items() if not (part is schema and name == "$defs")}
            reference = part.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/$defs/"):
                found["$ref"] = f"#/$defs/{prefix}{reference.removeprefix('#/$defs/')}"
            return found
        return [renamed(one) for one in part] if isinstance(part, list) else part

    return renamed(schema), {f"{prefix}{name}": renamed(one) for name, one in schema.get("$defs", {}).items()}
