"""Asks a compiled constraint, without a model, which texts it accepts and allows."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import Any

from daft_vllm.engine.constraints.libraries.base import Enforcement
from daft_vllm.engine.constraints.libraries.guidance import guidance_grammar
from daft_vllm.engine.constraints.libraries.trial import allowed_tokens, bytes_tokenizer, parser_limits


def acceptor(one: Enforcement) -> Callable[[str], bool]:
    """Return a function that says whether the constraint's grammar accepts a whole text."""
    if one.backend == "guidance":
        return functools.partial(_guidance_accepts, guidance_grammar(one))
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string

    if one.kind == "json":
        # With free whitespace: without it, xgrammar 0.2.8 requires a space after commas inside values of any type.
        grammar = xgrammar.Grammar.from_json_schema(str(one.spec), any_whitespace=True)
    elif one.kind == "regex":
        grammar = xgrammar.Grammar.from_regex(str(one.spec))
    else:
        grammar = xgrammar.Grammar.from_ebnf(str(one.spec))
    return lambda text: bool(_is_grammar_accept_string(grammar, text))


def _guidance_accepts(grammar: Any, text: str) -> bool:
    import llguidance

    matcher = llguidance.LLMatcher(bytes_tokenizer(), grammar, log_level=0, limits=parser_limits())
    tokens = bytes_tokenizer().tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def writer(one: Enforcement, draw: random.Random) -> Callable[[], str | None]:
    """Return a function that writes, byte by byte, a random text that the constraint's grammar allows.

    The function returns None if the text does not come to an end.
    """
    begin = _guidance_walk(one) if one.backend == "guidance" else _xgrammar_walk(one)

    def write() -> str | None:
        allowed, take = begin()
        written = bytearray()
        while len(written) < _LONGEST:
            choices = allowed()
            if END in choices and (len(choices) == 1 or draw.random() < _ENDS):
                return written.decode(errors="replace")
            closing = [byte for byte in choices if byte in _CLOSING]
            plain = [byte for byte in choices if byte in _PLAIN]
            if closing and draw.random() < _CLOSES:
                plain = closing
            one_of = plain if plain and draw.random() < _IS_PLAIN else [byte for byte in choices if byte != END]
            if not one_of:
                return written.decode(errors="replace") if END in choices else None
            byte = draw.choice(one_of)
            take(byte)
            written.append(byte)
        return None

    return write


END = 256
_LONGEST = 4000
_CLOSING, _PLAIN = tuple(b'"]}'), range(0x20, 0x7F)
_ENDS, _CLOSES, _IS_PLAIN = 0.15, 0.2, 0.97
"""How often a text ends where it may end, a string, list or object is closed where it may be, and a character is plain
ASCII."""

_Walk = Callable[[], tuple[Callable[[], list[int]], Callable[[int], None]]]


def _guidance_walk(one: Enforcement) -> _Walk:
    import llguidance
    import llguidance.numpy

    tokenizer, grammar = bytes_tokenizer(), guidance_grammar(one)
    mask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)

    def begin() -> tuple[Callable[[], list[int]], Callable[[int], None]]:
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())

        def allowed() -> list[int]:
            if matcher.is_stopped():
                return [END]
            llguidance.numpy.fill_next_token_bitmask(matcher, mask)
            found = allowed_tokens(mask.tobytes()).tolist()
            return [byte for byte in found if byte < END] + [END] * (tokenizer.eos_token in found)

        return allowed, matcher.consume_token

    return begin


def _xgrammar_walk(one: Enforcement) -> _Walk:
    import xgrammar

    vocabulary = [bytes([byte]) for byte in range(END)] + [b"<end>"]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END]))
    compiled = compiler.compile_json_schema(str(one.spec), any_whitespace=False)
    mask = xgrammar.allocate_token_bitmask(1, len(vocabulary))

    def begin() -> tuple[Callable[[], list[int]], Callable[[int], None]]:
        matcher = xgrammar.GrammarMatcher(compiled)

        def allowed() -> list[int]:
            if matcher.is_terminated():
                return [END]
            matcher.fill_next_token_bitmask(mask)
            return [byte for byte in allowed_tokens(mask.numpy().tobytes()).tolist() if byte <= END]

        return allowed, matcher.accept_token

    return begin


def texts_of(value: Any, one: Enforcement) -> set[str]:
    """Return compact JSON texts of a value: with its keys as they are, and in the order that the grammar expects."""
    values = (value, KeyOrder(one).apply(value))
    return {json.dumps(v, ensure_ascii=ascii, separators=(",", ":")) for v in values for ascii in (False, True)}


class KeyOrder:
    """Puts the keys of values into the order of a lowered schema. Notes whether a key is neither named nor allowed."""

    def __init__(self, one: Enforcement) -> None:
        self._root = json.loads(str(one.spec))
        self.has_unnamed_keys = False

    def apply(self, value: Any) -> Any:
        """Return the value with its keys in order."""
        return self._apply(value, self._root)

    def _apply(self, value: Any, node: Any) -> Any:
        node = self._branch_for(value, node)
        if isinstance(value, list):
            prefix, items = node.get("prefixItems", []), node.get("items", {})
            return [self._apply(v, prefix[i] if i < len(prefix) else items) for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        named = node.get("properties", {})
        unnamed = [name for name in value if name not in named]
        if unnamed and node.get("additionalProperties") is False and "patternProperties" not in node:
            self.has_unnamed_keys = True
        others = next(iter(node.get("patternProperties", {}).values()), node.get("additionalProperties", {}))
        return {
            **{name: self._apply(value[name], part) for name, part in named.items() if name in value},
            **{name: self._apply(value[name], others) for name in unnamed},
        }

    def _branch_for(self, value: Any, node: Any) -> dict[str, Any]:
        """Return the branch that shares the most keys with the value."""
        if not isinstance(node, dict):
            return {}
        if "$ref" in node:
            return self._branch_for(value, self._root["$defs"][node["$ref"].rsplit("/", 1)[-1]])
        options = [self._branch_for(value, option) for option in node.get("anyOf", ())]
        return max(options, key=lambda option: self._likeness(value, option)) if options else node

    def _likeness(self, value: Any, node: dict[str, Any]) -> tuple[bool, int]:
        kinds: dict[str, Any] = {"object": dict, "array": list, "string": str}
        fits = "type" not in node or isinstance(value, kinds.get(node["type"], int | float | None))
        if not isinstance(value, dict):
            return fits, 0
        named = node.get("properties", {})
        consts = sum(value.get(name) in part.get("enum", ()) for name, part in named.items() if isinstance(part, dict))
        missing = sum(name not in value for name in node.get("required", ()))
        return fits, 2 * len(set(named) & set(value)) + 3 * consts - 4 * missing - sum(n not in named for n in value)
