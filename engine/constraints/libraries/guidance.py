"""guidance (llguidance), the library for what xgrammar doesn't enforce."""

from __future__ import annotations

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
from daft_vllm.engine.constraints.patterns import rust_pattern

GUIDANCE_MARK = "%daft-vllm guidance\n"
"""Begins a grammar of llguidance, for ``patches/either_backend.py``. No EBNF and no Lark begins with a percent sign and
a hyphenated word."""


class Guidance(Library):
    """llguidance 1.7.

    It enforces what xgrammar can't (a pattern beside a length or a format, ``multipleOf``), and writes what xgrammar
    leaves out: quotes and line ends in strings with a length.
    """

    name: Backend = "guidance"
    formats = frozenset(("duration", "uuid", "uri"))
    integer_limit = 2**63 // 10  # beyond it, its own arithmetic overflows
    builds_without_torch = True
    enforces_several_key_patterns = True

    @override
    def multiples(self, steps: Sequence[float], find: Find, *, whole: bool) -> Node:
        if len(steps) > 1:
            return {"allOf": [{"multipleOf": step} for step in steps]}
        return {"multipleOf": steps[0]} if steps else {}

    @override
    def check_bounds(self, least: float, most: float, excluded: Sequence[float], keyword: str, find: Find) -> None:
        # llguidance 1.7 lets 2 in between 2, excluded, and 2.5.
        if most - least < 1 and any(end == int(end) for end in excluded):
            find(keyword, "llguidance includes a whole bound next to the other", "Write an integer")

    @override
    def string(self, rules: StringRules, find: Find) -> LoweredString:
        lengths = {"minLength": rules.low or None, "maxLength": rules.high}
        node: Node = {"type": "string", **{name: value for name, value in lengths.items() if value is not None}}
        says = [{"pattern": PATTERNS[name]} if name in PATTERNS else {"format": name} for name in rules.formats]
        patterns = [self.found_pattern(pattern, "pattern", find).text for pattern in rules.patterns]
        says += [{"pattern": text} for text in patterns if text]
        if not says:
            return LoweredString(node)
        return LoweredString({**node, **says[0]} if len(says) == 1 else {**node, "allOf": says})

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

        known = None
        if tokenizer is not None:
            import llguidance.hf  # brings transformers, which the driver may have to do without

            known = llguidance.hf.from_tokenizer(tokenizer)
        return str(llguidance.LLMatcher.validate_grammar(guidance_grammar(one), known))

    @override
    def to_vllm(self, one: Enforcement) -> dict[str, Any]:
        return {"grammar": GUIDANCE_MARK + guidance_grammar(one)}


def guidance_grammar(one: Enforcement) -> str:
    """Return a constraint in llguidance's own notation."""
    import llguidance

    if one.kind == "json":
        return str(
            llguidance.LLMatcher.grammar_from_json_schema(str(one.spec), defaults={"whitespace_flexible": False})
        )
    spec = json.dumps(one.spec) if one.kind == "choice" else str(one.spec)
    return str(llguidance.grammar_from(one.kind, spec))
