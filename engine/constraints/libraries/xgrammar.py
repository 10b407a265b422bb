"""xgrammar, the library that is used if it enforces all of a constraint."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from typing import Any

from typing_extensions import override

from daft_vllm.engine.constraints.constraint import Backend
from daft_vllm.engine.constraints.finding import Find, Node
from daft_vllm.engine.constraints.formats import PATTERNS
from daft_vllm.engine.constraints.libraries.base import (
    Enforcement,
    Library,
    LoweredString,
    StringRules,
)
from daft_vllm.engine.constraints.libraries.trial import DEAD_END, xgrammar_failure
from daft_vllm.engine.constraints.patterns import json_text_pattern, pattern_of_length, text_pattern

MOST_MULTIPLES = 1000
"""The most multiples of a number that are written out one by one."""
_SHORTEST_DATE = 10
_LARGE = 100_000
"""The characters of a lowered schema from which on compiling it twice takes seconds."""


class Xgrammar(Library):
    """xgrammar 0.2. ``lowering.py`` says what it does with a schema that isn't rewritten."""

    name: Backend = "xgrammar"
    formats = frozenset(("duration", "uuid", "uri", "uri-reference"))
    integer_limit = 2**63
    builds_without_torch = False
    enforces_several_key_patterns = False

    @override
    def multiples(self, steps: Sequence[float], find: Find, *, whole: bool) -> Node:
        if steps and whole:
            find(
                "multipleOf",
                "xgrammar doesn't enforce it without close bounds",
                f"Give minimum and maximum, at most {MOST_MULTIPLES} multiples apart, or count in that unit",
            )
        elif steps:
            find("multipleOf", "xgrammar doesn't enforce it", "Use an integer, of cents for example")
        return {}

    @override
    def check_bounds(self, least: float, most: float, excluded: Sequence[float], keyword: str, find: Find) -> None:
        pass  # it enforces all of them

    @override
    def string(self, rules: StringRules, find: Find) -> LoweredString:
        low, high, formats, patterns = rules
        if len(formats) + len(patterns) > 1:
            keyword = "format" if formats else "pattern"
            find(keyword, "xgrammar enforces only one pattern or format of a string", "Write one pattern")
        if formats and formats[0] not in PATTERNS:
            if low > 1 or high is not None:
                find("format", "xgrammar enforces no length beside it", "Leave the length out")
            return LoweredString({"type": "string", "format": formats[0]})
        if formats and low <= _SHORTEST_DATE:
            low = 0
        if formats or patterns:
            keyword = "format" if formats else "pattern"
            wanted = PATTERNS[formats[0]] if formats else patterns[0]
            text, narrow = self.pattern_or_finding(wanted, keyword, find, low, high)
            return LoweredString({"type": "string", "pattern": text} if text else {"type": "string"}, narrow)
        if not low and high is None:
            return LoweredString({"type": "string"})
        return LoweredString({"type": "string", "pattern": pattern_of_length(low, high)}, narrow=True)

    @override
    def pattern(self, pattern: str, low: int = 0, high: int | None = None) -> str:
        return json_text_pattern(pattern, low, high)

    @override
    def is_narrow(self, pattern: str) -> bool:
        return "[^" in pattern

    @override
    def pattern_of_keys(self, keys: Node) -> str | None:
        return keys.get("pattern") or (pattern_of_length(0, None) if keys == {"type": "string"} else None)

    @override
    def regex(self, pattern: str) -> str:
        return text_pattern(pattern)

    @override
    def build(self, one: Enforcement, tokenizer: Any) -> str:
        grammar = _grammar(one)
        if one.kind == "grammar" and (endless := endless_rule(str(grammar))):
            return endless
        if grammar is not None and tokenizer is not None:
            _compiler(tokenizer).compile_grammar(grammar)
        elif grammar is not None and len(str(one.spec)) < _LARGE and (too_slow := xgrammar_failure(grammar)):
            if too_slow == DEAD_END:
                return DEAD_END
            return (
                f"it can't keep up with a random answer ({too_slow}). Use smaller counts in patterns, and let no part "
                "that is counted be empty"
            )
        return ""

    @override
    def to_vllm(self, one: Enforcement) -> dict[str, Any]:
        return {one.kind: list(one.spec) if isinstance(one.spec, tuple) else one.spec}


def _grammar(one: Enforcement) -> Any:
    """Return a constraint as xgrammar's grammar; None for choices: vLLM makes that grammar."""
    from xgrammar import Grammar

    spec = str(one.spec)
    if one.kind == "json":
        return Grammar.from_json_schema(spec, any_whitespace=False, separators=(",", ":"))
    if one.kind == "regex":
        return Grammar.from_regex(spec)
    if one.kind == "grammar":
        return grammar_of(spec)
    return None


def grammar_of(text: str) -> Any:
    """Return a user's grammar as xgrammar's. Raises if xgrammar doesn't understand it."""
    from xgrammar import Grammar

    return Grammar.from_lark(text) if is_lark(text) else Grammar.from_ebnf(text)


def is_lark(grammar: str) -> bool:
    """Whether a grammar is in Lark's syntax and not in EBNF. As in vLLM, a grammar without ``::=`` is Lark."""
    return "::=" not in grammar


_RULE = re.compile(r"^(\w+) ::= (.*)$", re.MULTILINE)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{(\d+)[^}]*\}|\w+|[()|*+?]')


def endless_rule(grammar: str) -> str | None:
    """Return a message that names the first rule of which no text ends, None if there is none.

    Args:
        grammar: as xgrammar prints it: alternatives of sequences in parentheses, one rule a line.
    """
    rules = {name: list(_TOKEN.finditer(body)) for name, body in _RULE.findall(grammar)}
    ending: set[str] = set()
    while more := {name for name in rules.keys() - ending if _ends(rules[name], rules.keys() - ending)}:
        ending |= more
    endless = next((name for name in rules if name not in ending), None)
    return endless and f"no text of the rule {endless!r} ends, because each contains another of its kind"


def _ends(tokens: Sequence[re.Match[str]], endless: Collection[str]) -> bool:
    """Whether a rule has a text without any of the rules in ``endless``."""
    # For each open parenthesis: whether an alternative before this one ends, and the parts of this one.
    stack: list[tuple[bool, list[bool]]] = [(False, [])]
    for token in tokens:
        text = token[0]
        done, parts = stack[-1]
        if text == "(":
            stack.append((False, []))
        elif text == ")":
            stack.pop()
            stack[-1][1].append(done or all(parts))
        elif text == "|":
            stack[-1] = (done or all(parts), [])
        elif text in ("*", "?") or token[1] == "0":
            parts[-1:] = [True]
        elif text != "+" and token[1] is None:
            parts.append(text not in endless)
    done, parts = stack[0]
    return done or all(parts)


@functools.lru_cache(maxsize=2)
def _compiler(tokenizer: Any) -> Any:
    import xgrammar

    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer), max_threads=1)
