"""``tools``: functions that the model may call, and the column of its calls."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema
import pydantic_core
from daft import DataType

from daft_vllm.engine import Outcome
from daft_vllm.engine.constraints.constraint import BackendChoice
from daft_vllm.engine.constraints.limits.validator import find_wrong, reference_exists
from daft_vllm.engine.requests.toolbox import ToolAnswer, Toolbox, ToolCall
from daft_vllm.errors import OptionError, SchemaError
from daft_vllm.udf.answers.formats import Tools
from daft_vllm.udf.answers.return_format import Parsed, ReturnFormat, invalid, reason_of

CALL = DataType.struct({"name": DataType.string(), "arguments": DataType.string()})
CALLS = DataType.struct({"content": DataType.string(), "tool_calls": DataType.list(CALL)})
"""Type of the column: the text of the answer beside its calls, and the calls with their arguments as JSON text."""


@dataclass(frozen=True)
class CallFormat(ReturnFormat):
    """Answers with calls of tools, each validated against its tool's parameters. Picklable.

    Args:
        parameters: JSON Schema of each tool's arguments, by its name.
        most: the most calls of an answer. None: any number.
    """

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    most: int | None = None

    @classmethod
    def of_tools(
        cls,
        tools: Tools,
        tool_choice: str,
        *,
        parallel: bool,
        enforce: Literal["strict", "validate"],
        backend: BackendChoice,
    ) -> CallFormat:
        """Return the format of the answers.

        Args:
            tools: the tools.
            tool_choice: ``"auto"``: free text that may contain calls. ``"required"``: at least one call, constrained to
                the tool's parameters. A tool's name: one call of that tool.
            parallel: whether an answer may have several calls.
            enforce: as ``prompt()`` takes it.
            backend: as ``prompt()`` takes it.

        Raises:
            SchemaError: a tool's parameters are no schema or can't be enforced, or there is no tool ``tool_choice``.
        """
        parameters = {tool["name"]: tool["parameters"] for tool in tools.tools}
        for name, schema in parameters.items():
            try:
                jsonschema.Draft202012Validator.check_schema(schema)
            except jsonschema.SchemaError as e:
                message = f"the parameters of {name} are no JSON Schema, at {e.json_path}: {e.message}"
                raise SchemaError(message) from None
            for reference in _references(schema):
                if not reference_exists(schema, reference):
                    raise SchemaError(f"the parameters of {name} refer to {reference!r}, which is not there.")
        most = None if parallel and tool_choice in ("auto", "required") else 1
        if tool_choice == "auto":
            return cls(None, CALLS, parameters=parameters, most=most)
        chosen = tools if tool_choice == "required" else tools.only(tool_choice)
        call = chosen.schema()
        definitions = {"$defs": call.pop("$defs")} if "$defs" in call else {}
        limit = {} if most is None else {"maxItems": most}
        schema = {"type": "array", "items": call, "minItems": 1, **limit, **definitions}
        constraint = ReturnFormat.of(schema, enforce=enforce, backend=backend).constraint
        return cls(constraint, CALLS, parameters=parameters, most=most)

    def parse_outcome(self, name: str | None, outcome: Outcome) -> Parsed:
        """Return the calls of an answer. A call that doesn't fit its tool makes the row an error."""
        if outcome.error is not None or outcome.text is None:
            return Parsed(None, outcome.error)
        try:
            return self._parsed(outcome.text, outcome.tool_answer)
        except Exception as e:  # models write things that validators don't expect: half an emoji, 1e30
            return invalid(f"the calls can't be read: {reason_of(e)}")

    def _parsed(self, text: str, answer: ToolAnswer | None) -> Parsed:
        if answer is None:
            calls = [ToolCall(c["name"], json.dumps(c["arguments"])) for c in pydantic_core.from_json(text)]
            answer = ToolAnswer(None, tuple(calls))
        answer = answer._replace(calls=tuple(call._replace(arguments=call.arguments or "{}") for call in answer.calls))
        if self.most is not None and len(answer.calls) > self.most:
            return invalid(f"the model made {len(answer.calls)} calls, but only {self.most} is allowed")
        for call in answer.calls:
            wrong = self._wrong(call)
            if wrong is not None:
                return invalid(wrong)
        return Parsed({"content": answer.content, "tool_calls": [call._asdict() for call in answer.calls]})

    @functools.cached_property
    def _schemas(self) -> dict[str, str]:
        """The parameters as text."""
        return {name: json.dumps(schema) for name, schema in self.parameters.items()}

    def _wrong(self, call: ToolCall) -> str | None:
        if call.name not in self.parameters:
            return f"the model called {call.name!r}: there is no such tool, but {', '.join(self.parameters)}"
        try:
            arguments = pydantic_core.from_json(call.arguments, allow_inf_nan=False)
        except ValueError as e:
            return f"the arguments of {call.name} are not JSON: {e}"
        wrong = find_wrong(self._schemas[call.name], arguments)
        return None if wrong is None else f"the arguments of {call.name}: {wrong.path}: {wrong.message}"


def toolbox_of(tools: Tools, parser: str | None) -> Toolbox:
    """Return the tools that the model may call, as the engine takes them.

    Raises:
        OptionError: no parser is named.
    """
    if not parser:
        raise OptionError(
            'tools need a parser for calls. Give its name in vLLM: tool_parser="hermes" for Qwen, '
            '"llama3_json" for Llama, "mistral", ... tool_choice="required" needs none.'
        )
    return Toolbox(tuple(json.dumps({"type": "function", "function": tool}) for tool in tools.tools), parser)


def tools_of(given: Sequence[Any] | Tools) -> Tools:
    """Return the tools that ``prompt()`` was given."""
    return given if isinstance(given, Tools) else Tools(given)


def _references(part: Any) -> Iterator[str]:
    """Return all references in a schema."""
    if isinstance(part, Mapping):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for one in part.values():
            yield from _references(one)
    elif isinstance(part, list):
        for one in part:
            yield from _references(one)
