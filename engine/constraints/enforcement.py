"""Which library holds an output to its constraint, and what it is given.

xgrammar is the default; guidance (llguidance) holds what xgrammar can't (a pattern beside a length or a format,
``multipleOf``), and writes what xgrammar leaves out: quotes and line ends in strings with a length. vLLM's other two,
outlines and lm-format-enforcer, hold nothing that neither of these does, and are not offered.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from daft_vllm.engine.constraints.emission import Backend, Finding
from daft_vllm.engine.constraints.lowering import lower
from daft_vllm.engine.constraints.patterns import Unsayable, rust_pattern, text_pattern
from daft_vllm.engine.patches.either_backend import guidance_spec
from daft_vllm.engine.requests.request import Constraint
from daft_vllm.errors import OptionError, SchemaError

BACKENDS: tuple[Backend, ...] = get_args(Backend)
BUILD_SECONDS = 30.0
"""How long a grammar may take to be built before the model is loaded."""
_LARGEST = 1_000_000
"""Characters of a lowered schema: xgrammar compiles 340,000 in 9 seconds, 3.3 million in minutes and 8 GB."""
_INSTEAD = 'enforce="validate" leaves it to validation after an answer is written: what fails that is an error value.'


class Held(NamedTuple):
    """A constraint as a backend takes it.

    Attributes:
        backend: the backend.
        kind: the field of vLLM's ``StructuredOutputsParams``.
        spec: the value of that field: for ``json`` a schema lowered for this backend.
        left: what a schema says and the backend doesn't hold; validation after generation has to.
        narrow: whether the backend refuses some strings that the schema accepts: with escapes beside a length.
    """

    backend: Backend
    kind: Literal["json", "choice", "regex", "grammar"]
    spec: str | tuple[str, ...]
    left: tuple[Finding, ...] = ()
    narrow: bool = False

    def to_vllm(self) -> dict[str, Any]:
        """Return arguments for vLLM's ``StructuredOutputsParams``."""
        if self.backend == "guidance":
            return {"grammar": guidance_spec(guidance_grammar(self))}
        return {self.kind: list(self.spec) if isinstance(self.spec, tuple) else self.spec}


@functools.lru_cache(maxsize=256)
def held(constraint: Constraint, *, build: bool = True) -> Held:
    """Return how a constraint is enforced while an answer is written.

    Args:
        constraint: the constraint.
        build: False leaves out what needs xgrammar, whose import brings torch: building its grammar.

    Raises:
        SchemaError: the constraint says what its backend doesn't hold, with place and reason; nothing satisfies it; or
            its grammar can't be built, in ``BUILD_SECONDS`` or at all.
    """
    why: list[str] = []
    taken: list[Held] = []
    for backend in BACKENDS if constraint.backend == "auto" else (constraint.backend,):
        one = _taken(constraint, backend)
        if isinstance(one, str):
            why.append(one)
            continue
        why += [str(finding) for finding in one.left if str(finding) not in why]
        if one.left and constraint.enforce == "strict":
            continue
        taken.append(one)
        if not one.left and not one.narrow:
            break  # no other is needed
    for one in sorted(taken, key=lambda one: (len(one.left), one.narrow)):
        light = one.backend == "xgrammar" and not build
        error = None if light else _within_time(functools.partial(_build_error, one))
        if error is None:
            return one
        why.append(f"{one.backend} can't build the grammar: {error}")
    listed = "\n".join(f"  {line}" for line in why)
    hint = f"\n{_INSTEAD}" if constraint.enforce == "strict" and constraint.json_schema is not None else ""
    raise SchemaError(f"return_format can't be enforced while an answer is written:\n{listed}{hint}")


def check_backend(backend: str) -> None:
    """Raise ``OptionError`` unless ``backend`` is one, or ``"auto"``."""
    if backend not in ("auto", *BACKENDS):
        raise OptionError(f"backend is 'auto', {' or '.join(map(repr, BACKENDS))}, got {backend!r}.")


def _taken(constraint: Constraint, backend: Backend) -> Held | str:
    """Return the constraint in the backend's terms, or why it doesn't take it."""
    if constraint.choices is not None:
        return Held(backend, "choice", constraint.choices)
    if constraint.grammar is not None:
        return Held(backend, "grammar", constraint.grammar)
    if constraint.regex is not None:
        try:
            text = (
                text_pattern(constraint.regex)
                if backend == "xgrammar"
                else rust_pattern(constraint.regex, search=False)
            )
        except Unsayable as e:
            return f"{backend} can't take the regular expression: {e}"
        return Held(backend, "regex", text)
    lowered = lower(json.loads(constraint.json_schema or "true"), backend)
    if lowered.schema is None:
        raise SchemaError("/: allOf: no value satisfies the schema: two of its parts contradict each other.")
    return Held(backend, "json", json.dumps(lowered.schema), tuple(lowered.findings), lowered.narrow)


def compile_error(one: Held, tokenizer: Any) -> str | None:
    """Return why the grammar can't be compiled for a tokenizer, in ``BUILD_SECONDS`` or at all; None if it can.

    Args:
        one: the constraint.
        tokenizer: of Hugging Face's ``transformers``.
    """
    return _within_time(functools.partial(_build_error, one, tokenizer))


def _within_time(check: Callable[[], str | None]) -> str | None:
    """Return what ``check`` returns, which it may never do: these libraries can't be interrupted, but free the GIL."""
    result: list[str | None] = []
    thread = threading.Thread(target=lambda: result.append(check()), daemon=True)
    thread.start()
    thread.join(BUILD_SECONDS)
    return result[0] if result else f"not done after {BUILD_SECONDS:g} seconds: its counts or choices are too many"


def _build_error(one: Held, tokenizer: Any = None) -> str | None:
    """Return why the grammar can't be built, or compiled for a tokenizer if one is given."""
    if one.kind == "json" and len(one.spec) > _LARGEST:
        return f"the schema has {len(one.spec):,} characters with its references and choices written out"
    try:
        if one.backend == "guidance":
            return _guidance_error(one, tokenizer)
        grammar = _xgrammar_grammar(one)
        if grammar is not None and tokenizer is not None:
            _xgrammar_compiler(tokenizer).compile_grammar(grammar)
    except Exception as e:
        return _first_line(str(e))
    return None


def _xgrammar_grammar(one: Held) -> Any:
    """Return a constraint as xgrammar's grammar; None for choices, of which vLLM makes it."""
    from xgrammar import Grammar

    spec = str(one.spec)
    if one.kind == "json":
        return Grammar.from_json_schema(spec, any_whitespace=False, separators=(",", ":"))
    if one.kind == "regex":
        return Grammar.from_regex(spec)
    if one.kind == "grammar":
        return Grammar.from_lark(spec) if is_lark(spec) else Grammar.from_ebnf(spec)
    return None


@functools.lru_cache(maxsize=2)
def _xgrammar_compiler(tokenizer: Any) -> Any:
    import xgrammar

    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer), max_threads=1)


def _guidance_error(one: Held, tokenizer: Any) -> str | None:
    import llguidance

    known = None
    if tokenizer is not None:
        import llguidance.hf  # brings transformers, which the driver may have to do without

        known = llguidance.hf.from_tokenizer(tokenizer)
    return _first_line(str(llguidance.LLMatcher.validate_grammar(guidance_grammar(one), known)))


def guidance_grammar(one: Held) -> str:
    """Return a constraint in llguidance's own notation."""
    import llguidance

    if one.kind == "json":
        return str(
            llguidance.LLMatcher.grammar_from_json_schema(str(one.spec), defaults={"whitespace_flexible": False})
        )
    spec = json.dumps(one.spec) if one.kind == "choice" else str(one.spec)
    return str(llguidance.grammar_from(one.kind, spec))


def is_lark(grammar: str) -> bool:
    """Whether a grammar is written in Lark's syntax rather than EBNF, as vLLM tells them apart: no ``::=`` in it."""
    return "::=" not in grammar


def _first_line(message: str) -> str | None:
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return lines[0][:500] if lines else None
