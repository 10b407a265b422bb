"""What a compiled constraint accepts, asked without a model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from daft_vllm.engine.backends import Held, guidance_grammar


def acceptor(one: Held) -> Callable[[str], bool]:
    """Return a function that says whether the constraint's grammar accepts a whole text."""
    if one.backend == "guidance":
        return functools.partial(_guidance_accepts, guidance_grammar(one))
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string

    if one.kind == "json":
        grammar = xgrammar.Grammar.from_json_schema(str(one.spec), any_whitespace=False, separators=(",", ":"))
    elif one.kind == "regex":
        grammar = xgrammar.Grammar.from_regex(str(one.spec))
    else:
        grammar = xgrammar.Grammar.from_ebnf(str(one.spec))
    return lambda text: bool(_is_grammar_accept_string(grammar, text))


@functools.cache
def _bytes_tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


def _guidance_accepts(grammar: Any, text: str) -> bool:
    import llguidance

    matcher = llguidance.LLMatcher(_bytes_tokenizer(), grammar, log_level=0)
    tokens = _bytes_tokenizer().tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def texts_of(value: Any, schema: Any) -> set[str]:
    """Return compact JSON texts of a value: with its keys as they are, and in the order in which the schema names them.

    A grammar takes the keys in one order. The second text is a guess where several objects name the same keys.
    """
    orders: list[list[str]] = []
    _find_orders(schema, orders)
    return {json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in (value, _ordered(value, orders))} | {
        json.dumps(value, separators=(",", ":"))
    }


def named_keys(schema: Any) -> set[str]:
    """Return every key that a schema names anywhere."""
    orders: list[list[str]] = []
    _find_orders(schema, orders)
    return {name for order in orders for name in order}


def keys_of(value: Any) -> set[str]:
    """Return every key of a value."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(part) for part in value.values()))
    return set().union(*(keys_of(part) for part in value)) if isinstance(value, list) else set()


def _find_orders(schema: Any, found: list[list[str]]) -> None:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            found.append(list(schema["properties"]))
        for part in schema.values():
            _find_orders(part, found)
    elif isinstance(schema, list):
        for part in schema:
            _find_orders(part, found)


def _ordered(value: Any, orders: list[list[str]]) -> Any:
    if isinstance(value, list):
        return [_ordered(part, orders) for part in value]
    if not isinstance(value, dict):
        return value
    best = max(orders, key=lambda order: len(set(order) & set(value)), default=[])
    return {name: _ordered(value[name], orders) for name in [*(n for n in best if n in value), *(value.keys() - best)]}
