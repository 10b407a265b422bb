"""A constraint: what an answer has to satisfy, and the libraries that can enforce it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daft_vllm.errors import OptionError, SchemaError

Backend = Literal["xgrammar", "guidance"]
"""The library that enforces a constraint: vLLM's structured-output backends of these names."""
BackendChoice = Literal["auto", Backend]
"""A library, or the choice among them."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output has to satisfy. Exactly one of the first four fields is given.

    Args:
        json_schema: JSON Schema (draft 2020-12) as text.
        choices: the only answers allowed.
        regex: a regular expression that matches the whole answer, in Python's syntax.
        grammar: EBNF as xgrammar reads it (``root ::= ...``), or Lark (``start: ...``).
        enforce: ``"validate"`` also accepts a schema if part of it can't be enforced while an answer is written. The
            reader of the answer then has to check that part.
        backend: the library that enforces the constraint. ``"auto"``: xgrammar if it enforces all of it and refuses no
            valid answer; else guidance (llguidance) if that does; else the one that leaves fewer parts unenforced.
    """

    json_schema: str | None = None
    choices: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: str | None = None
    enforce: Literal["strict", "validate"] = "strict"
    backend: BackendChoice = "auto"

    def __post_init__(self) -> None:
        given = [name for name in ("json_schema", "choices", "regex", "grammar") if getattr(self, name) is not None]
        if len(given) != 1:
            raise OptionError(
                f"a constraint takes exactly one of json_schema, choices, regex and grammar, got {given or 'none'}."
            )
        texts = self.choices or (self.json_schema or self.regex or self.grammar or "",)
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise SchemaError("return_format has half of a surrogate pair, which is no character. Leave it out.")
