"""The interface of a grammar library. Each library is one class in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from daft_vllm.engine.constraints.constraint import Backend
from daft_vllm.engine.constraints.finding import Find, Finding, Node
from daft_vllm.engine.constraints.limits.written import MOST_WRITTEN
from daft_vllm.engine.constraints.patterns import UnsupportedPattern


class Enforcement(NamedTuple):
    """A constraint as a library enforces it.

    Attributes:
        backend: the library.
        kind: the field of vLLM's ``StructuredOutputsParams``.
        spec: the value of that field: for ``json`` a schema lowered for this library.
        unenforced: parts of a schema that the library doesn't enforce. They have to be validated after generation.
        narrow: whether the library refuses some strings that the schema accepts: those with escapes, where the schema
            gives a length or a pattern.
    """

    backend: Backend
    kind: Literal["json", "choice", "regex", "grammar"]
    spec: str | tuple[str, ...]
    unenforced: tuple[Finding, ...] = ()
    narrow: bool = False


class StringRules(NamedTuple):
    """The rules of a schema for a string.

    Attributes:
        low: the fewest characters.
        high: the most characters. None: any number.
        formats: names of the formats that have to be enforced.
        patterns: regular expressions that are searched for.
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
    """A pattern in a library's syntax, None if it can't be written in it, and whether it is narrow as above."""

    text: str | None
    narrow: bool = False


class Library(ABC):
    """A grammar library. It has no state: there is one object of each class."""

    name: Backend
    formats: frozenset[str]
    """Formats of strings that it enforces by itself, as strictly as the specification demands."""
    integer_limit: int
    """It can bound integers that are at least minus this limit and less than this limit."""
    builds_without_torch: bool
    """Whether a grammar can be built without importing torch, which is too heavy for a driver."""
    enforces_several_key_patterns: bool
    """Whether it enforces several patterns of an object's keys, each with its own schema of values."""

    # How a schema is written for the library. Each method may report what the library can't enforce, with ``find``.

    @abstractmethod
    def multiples(self, steps: Sequence[float], find: Find, *, whole: bool) -> Node:
        """Return the keywords for a multiple of each of ``steps``. ``whole``: the number is an integer."""

    @abstractmethod
    def check_bounds(self, least: float, most: float, excluded: Sequence[float], keyword: str, find: Find) -> None:
        """Report the bounds of a number that the library can't enforce.

        Args:
            least: the lower bound.
            most: the upper bound.
            excluded: those of the two bounds that are not allowed themselves.
            keyword: the keyword to report.
            find: reports a finding.
        """

    @abstractmethod
    def string(self, rules: StringRules, find: Find) -> LoweredString:
        """Return the schema of a string."""

    @abstractmethod
    def pattern(self, pattern: str, low: int = 0, high: int | None = None) -> str:
        """Return a schema's pattern, for strings of ``low`` to ``high`` characters, in the library's syntax.

        Raises:
            UnsupportedPattern: the pattern can't be written in that syntax.
        """

    def is_narrow(self, pattern: str) -> bool:
        """Whether a result of ``self.pattern`` leaves out strings with characters that JSON escapes."""
        return False

    def pattern_or_finding(
        self, pattern: str, keyword: str, find: Find, low: int = 0, high: int | None = None
    ) -> LoweredPattern:
        """Return what ``self.pattern`` returns. What can't be written is reported, and left out of the result."""
        try:
            text = self.pattern(pattern, low, high)
            return LoweredPattern(text, self.is_narrow(text))
        except UnsupportedPattern as e:
            with_length = (low or high is not None) and "length" in str(e)
            find(
                keyword,
                str(e),
                "Write the length into the pattern: ^[a-z]{1,12}$" if with_length else "Write it without",
            )
        return LoweredPattern(self.pattern_or_finding(pattern, keyword, find).text if with_length else None)

    @abstractmethod
    def pattern_of_keys(self, keys: Node) -> str | None:
        """Return a pattern for the keys that a lowered schema allows. None: the library can't enforce it."""

    # How a constraint is given to the library.

    @abstractmethod
    def regex(self, pattern: str) -> str:
        """Return a regular expression for whole answers in the library's syntax.

        Raises:
            UnsupportedPattern: the expression can't be written in that syntax.
        """

    def build_error(self, one: Enforcement, tokenizer: Any = None) -> str | None:
        """Return why the grammar can't be built, or compiled for a tokenizer if one is given; None if it can.

        Args:
            one: the constraint.
            tokenizer: a tokenizer of Hugging Face's ``transformers``.
        """
        if one.kind == "json" and len(one.spec) > MOST_WRITTEN:
            return (
                f"the schema has {len(one.spec):,} characters with its references and choices written out, more than "
                f"{MOST_WRITTEN:,}. Use fewer references or choices"
            )
        try:
            message = self.build(one, tokenizer)
        except Exception as e:
            message = str(e)
        return next((line[:500] for line in message.strip().splitlines() if line.strip()), None)

    @abstractmethod
    def build(self, one: Enforcement, tokenizer: Any) -> str:
        """Build the grammar, and compile it for a tokenizer if one is given.

        Returns what is wrong, or raises it. Empty: nothing is wrong.
        """

    @abstractmethod
    def to_vllm(self, one: Enforcement) -> dict[str, Any]:
        """Return arguments for vLLM's ``StructuredOutputsParams``."""
