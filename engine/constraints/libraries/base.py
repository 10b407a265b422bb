"""What a grammar library is asked: one class for each, in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from daft_vllm.engine.constraints.constraint import Backend
from daft_vllm.engine.constraints.finding import Find, Finding, Node
from daft_vllm.engine.constraints.patterns import Unsayable

_LARGEST = 1_000_000
"""Characters of a lowered schema: xgrammar compiles 340,000 in 9 seconds, 3.3 million in minutes and 8 GB."""


class Enforcement(NamedTuple):
    """A constraint as a library enforces it.

    Attributes:
        backend: the library.
        kind: the field of vLLM's ``StructuredOutputsParams``.
        spec: the value of that field: for ``json`` a schema lowered for this library.
        left: what a schema says and the library doesn't enforce; validation after generation has to.
        narrow: whether the library refuses some strings that the schema accepts: with escapes beside a length.
    """

    backend: Backend
    kind: Literal["json", "choice", "regex", "grammar"]
    spec: str | tuple[str, ...]
    left: tuple[Finding, ...] = ()
    narrow: bool = False


class StringRules(NamedTuple):
    """What a schema says of a string.

    Attributes:
        low: characters at least.
        high: characters at most. None: any number.
        formats: names of formats, those that are asserted.
        patterns: regular expressions, searched for.
    """

    low: int
    high: int | None
    formats: Sequence[str]
    patterns: Sequence[str]


class LoweredString(NamedTuple):
    """The lowered schema of a string, and whether it refuses strings that the original accepts: those with escapes."""

    node: Node
    narrow: bool = False


class LoweredPattern(NamedTuple):
    """A pattern in a library's syntax, None if it can't be written so, and whether it is narrow as above."""

    text: str | None
    narrow: bool = False


class Library(ABC):
    """A grammar library. It has no state: there is one object of each."""

    name: Backend
    formats: frozenset[str]
    """Formats of strings that it enforces by itself, as strictly as the specification has them."""
    integer_limit: int
    """Integers that it can bound are at least minus this and less than this."""
    builds_without_torch: bool
    """Whether a grammar can be built without importing torch, which is too much for a driver."""
    enforces_several_key_patterns: bool
    """Whether an object's keys may be of several patterns, each with values of its own."""

    # How a schema is written for it. Each may note what it can't enforce, with ``find``.

    @abstractmethod
    def multiples(self, steps: Sequence[float], find: Find, *, whole: bool) -> Node:
        """Return what says that a number is a multiple of each of ``steps``; ``whole``: it is an integer."""

    @abstractmethod
    def check_bounds(self, least: float, most: float, excluded: Sequence[float], keyword: str, find: Find) -> None:
        """Look at the bounds of a number that ``keyword`` excludes from what is allowed."""

    @abstractmethod
    def string(self, rules: StringRules, find: Find) -> LoweredString:
        """Return the schema of a string."""

    @abstractmethod
    def pattern(self, pattern: str, low: int = 0, high: int | None = None) -> str:
        """Return a schema's pattern, of strings of ``low`` to ``high`` characters, in its syntax.

        Raises:
            Unsayable: it can't be written so.
        """

    def is_narrow(self, pattern: str) -> bool:
        """Whether what ``pattern`` returned leaves out strings that have to be escaped."""
        return False

    def found_pattern(
        self, pattern: str, keyword: str, find: Find, low: int = 0, high: int | None = None
    ) -> LoweredPattern:
        """Do as ``pattern`` does, and note what can't be written so: it is then left out of the result."""
        try:
            text = self.pattern(pattern, low, high)
            return LoweredPattern(text, self.is_narrow(text))
        except Unsayable as e:
            with_length = (low or high is not None) and "length" in str(e)
            find(
                keyword,
                str(e),
                "Write the length into the pattern: ^[a-z]{1,12}$" if with_length else "Write it without",
            )
        return LoweredPattern(self.pattern(pattern) if with_length else None)

    @abstractmethod
    def pattern_of_keys(self, keys: Node) -> str | None:
        """Return the pattern that a lowered schema of keys stands for; None: the library can't enforce it."""

    # How a constraint is given to it.

    @abstractmethod
    def regex(self, pattern: str) -> str:
        """Return a regular expression of whole answers in its syntax.

        Raises:
            Unsayable: it can't be written so.
        """

    def build_error(self, one: Enforcement, tokenizer: Any = None) -> str | None:
        """Return why the grammar can't be built, or compiled for a tokenizer if one is given; None if it can.

        Args:
            one: the constraint.
            tokenizer: of Hugging Face's ``transformers``.
        """
        if one.kind == "json" and len(one.spec) > _LARGEST:
            return f"the schema has {len(one.spec):,} characters with its references and choices written out"
        try:
            message = self.build(one, tokenizer)
        except Exception as e:
            message = str(e)
        return next((line[:500] for line in message.strip().splitlines() if line.strip()), None)

    @abstractmethod
    def build(self, one: Enforcement, tokenizer: Any) -> str:
        """Build the grammar, and compile it for a tokenizer if one is given; return what is wrong, or raise it."""

    @abstractmethod
    def to_vllm(self, one: Enforcement) -> dict[str, Any]:
        """Return arguments for vLLM's ``StructuredOutputsParams``."""
