"""guidance (llguidance), the library for what xgrammar doesn't enforce."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
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
from daft_vllm.engine.constraints.libraries.trial import guidance_failure, parser_limits
from daft_vllm.engine.constraints.libraries.xgrammar import endless_rule, grammar_of
from daft_vllm.engine.constraints.patterns import rust_pattern

GUIDANCE_MARK = "%daft-vllm guidance\n"
"""First line of a grammar for llguidance. ``patches/either_backend.py`` recognizes the grammar by it. Neither EBNF nor
Lark can begin with a percent sign and a hyphenated word."""


class Guidance(Library):
    """llguidance 1.7.

    It enforces what xgrammar can't (a pattern beside a length or a format, ``multipleOf``), and allows what xgrammar
    refuses: quotes and line ends in strings with a length.
    """

    name: Backend = "guidance"
    formats = frozenset(("duration", "uuid", "uri"))
    integer_limit = 2**63 // 10  # above it, llguidance's own arithmetic overflows
    builds_without_torch = True
    enforces_several_key_patterns = True

    @override
    def multiples(self, steps: Sequence[float], find: Find, *, whole: bool) -> Node:
        if len(steps) > 1:
            return {"allOf": [{"multipleOf": step} for step in steps]}
        return {"multipleOf": steps[0]} if steps else {}

    @override
    def check_bounds(self, least: float, most: float, excluded: Sequence[float], keyword: str, find: Find) -> None:
        # With exclusiveMinimum 2 and a maximum of 2.5, llguidance 1.7 still allows 2.
        if most - least < 1 and any(end == int(end) for end in excluded):
            find(
                keyword,
                "llguidance includes a whole bound that is excluded, if the other is less than 1 away",
                "Write an integer",
            )

    @override
    def string(self, rules: StringRules, find: Find) -> LoweredString:
        lengths = {"minLength": rules.low or None, "maxLength": rules.high}
        node: Node = {"type": "string", **{name: value for name, value in lengths.items() if value is not None}}
        parts = [{"pattern": PATTERNS[name]} if name in PATTERNS else {"format": name} for name in rules.formats]
        patterns = [self.pattern_or_finding(pattern, "pattern", find).text for pattern in rules.patterns]
        parts += [{"pattern": text} for text in patterns if text]
        if not parts:
            return LoweredString(node)
        return LoweredString({**node, **parts[0]} if len(parts) == 1 else {**node, "allOf": parts})

    @override
    def pattern(self, pattern: str, low: int = 0, high: int | None = None) -> str:
        return rust_pattern(pattern)

    @override
    def pattern_of_keys(self, keys: Node) -> str | None:
        return None

    @override
    def regex(self, pattern: str) -> str:
        return rust_pattern(pattern, search=False)

    @override
    def build(self, one: Enforcement, tokenizer: Any) -> str:
        import llguidance

        grammar = guidance_grammar(one)
        ll_tokenizer = None
        if tokenizer is not None:
            import llguidance.hf  # imports transformers, which the driver may not have

            ll_tokenizer = llguidance.hf.from_tokenizer(tokenizer)
            if one.kind == "grammar":  # llguidance doesn't find out whether a grammar ends
                with contextlib.suppress(Exception):  # xgrammar doesn't know all of llguidance's notation
                    if endless := endless_rule(str(grammar_of(str(one.spec)))):
                        return endless
        if wrong := llguidance.LLMatcher.validate_grammar(grammar, ll_tokenizer, limits=parser_limits()):
            return str(wrong)
        gave_up = guidance_failure(grammar, ll_tokenizer)
        if gave_up is None:
            return ""
        return (
            f"{_place(one, ll_tokenizer)}llguidance can't write a random answer ({gave_up}). Use smaller counts in the "
            "pattern, such as {0,20}, or leave out the length beside it"
        )

    @override
    def to_vllm(self, one: Enforcement) -> dict[str, Any]:
        return {"grammar": GUIDANCE_MARK + guidance_grammar(one)}


def _place(one: Enforcement, ll_tokenizer: Any) -> str:
    """Return the JSON pointer of the first string on which llguidance gives up, with a colon. Empty: none is found."""
    pending = [("", json.loads(str(one.spec)))] if one.kind == "json" else []
    while pending:
        pointer, node = pending.pop(0)
        if isinstance(node, dict) and node.get("type") == "string":
            if guidance_failure(guidance_grammar(one._replace(spec=json.dumps(node))), ll_tokenizer) is not None:
                return f"{pointer or '/'}: pattern: "
        elif isinstance(node, dict | list):
            parts = node.items() if isinstance(node, dict) else enumerate(node)
            pending += [(f"{pointer}/{name}", part) for name, part in parts]
    return ""


def guidance_grammar(one: Enforcement) -> str:
    """Return a constraint in llguidance's own notation."""
    import llguidance

    if one.kind == "json":
        return str(
            llguidance.LLMatcher.grammar_from_json_schema(str(one.spec), defaults={"whitespace_flexible": False})
        )
    spec = json.dumps(one.spec) if one.kind == "choice" else str(one.spec)
    return str(llguidance.grammar_from(one.kind, spec))
