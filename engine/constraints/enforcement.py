"""Choose the library that enforces a constraint, and translate the constraint for it.

vLLM's two other libraries, outlines and lm-format-enforcer, are not offered: they enforce nothing that xgrammar and
guidance don't.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from typing import Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.libraries import LIBRARIES
from daft_vllm.engine.constraints.libraries.base import Enforcement, Library
from daft_vllm.engine.constraints.limits.extent import check_pattern
from daft_vllm.engine.constraints.limits.work import limited_work
from daft_vllm.engine.constraints.limits.written import MOST_WRITTEN
from daft_vllm.engine.constraints.lowering import lower
from daft_vllm.engine.constraints.patterns import UnsupportedPattern
from daft_vllm.errors import SchemaError

BUILD_SECONDS = 30.0
"""How long building a grammar may take. It is built before the model is loaded."""
_VALIDATE_HINT = (
    'With enforce="validate" it is checked after an answer is written: an answer that fails is an error value.'
)


@functools.lru_cache(maxsize=256)
def enforcement_of(constraint: Constraint, *, build: bool = True) -> Enforcement:
    """Return how a constraint is enforced while an answer is written.

    Args:
        constraint: the constraint.
        build: False does not build xgrammar's grammar: importing xgrammar imports torch.

    Raises:
        SchemaError: the library can't enforce part of the constraint (the message gives place and reason), no value
            satisfies the constraint, or its grammar can't be built, in ``BUILD_SECONDS`` or at all.
    """
    why: list[str] = []
    candidates: list[Enforcement] = []
    strict = constraint.enforce == "strict"
    libraries = LIBRARIES.values() if constraint.backend == "auto" else (LIBRARIES[constraint.backend],)
    for library in libraries:
        one = _translated(constraint, library)
        if isinstance(one, str):
            why.append(one)
            continue
        why += [str(finding) for finding in one.unenforced if str(finding) not in why]
        if one.unenforced and strict:
            continue
        candidates.append(one)
        if not one.unenforced and not one.narrow:
            break  # the other library is not needed
    candidates.sort(key=lambda one: (len(one.unenforced), one.narrow))
    tried: set[str] = set()
    while candidates:
        one = candidates.pop(0)
        tried.add(one.backend)
        library = LIBRARIES[one.backend]
        can_build = build or library.builds_without_torch
        error = _within_time(functools.partial(library.build_error, one)) if can_build else None
        if error is None:
            return one
        why.append(f"{one.backend} can't build the grammar: {error}")
        if not candidates:  # now a library is needed that wasn't looked at
            others = (_translated(constraint, other) for other in libraries if other.name not in tried)
            candidates += [o for o in others if isinstance(o, Enforcement) and not (o.unenforced and strict)]
    listed = "\n".join(f"  {line}" for line in why)
    hint = f"\n{_VALIDATE_HINT}" if strict and constraint.json_schema is not None else ""
    raise SchemaError(f"return_format can't be enforced while an answer is written:\n{listed}{hint}")


def vllm_arguments(constraint: Constraint) -> dict[str, Any]:
    """Return arguments for vLLM's ``StructuredOutputsParams``. Raises as ``enforcement_of`` does."""
    one = enforcement_of(constraint)
    return LIBRARIES[one.backend].to_vllm(one)


def _translated(constraint: Constraint, library: Library) -> Enforcement | str:
    """Return the constraint in the library's terms, or the reason why the library can't take it."""
    with limited_work():
        return _translated_in_time(constraint, library)


def _translated_in_time(constraint: Constraint, library: Library) -> Enforcement | str:
    written = sum(map(len, constraint.choices or (constraint.grammar or "",)))
    if written > MOST_WRITTEN:
        raise SchemaError(
            f"return_format has {'choices' if constraint.choices else 'a grammar'} of {written:,} characters, more "
            f"than {MOST_WRITTEN:,}: use a Regex, or free text that you compare afterwards."
        )
    if constraint.choices is not None:
        return Enforcement(library.name, "choice", constraint.choices)
    if constraint.grammar is not None:
        return Enforcement(library.name, "grammar", constraint.grammar)
    if constraint.regex is not None:
        check_pattern(constraint.regex, "return_format")
        try:
            return Enforcement(library.name, "regex", library.regex(constraint.regex))
        except UnsupportedPattern as e:
            return f"{library.name} can't take the regular expression: {e}"
    lowered = lower(json.loads(constraint.json_schema or "true"), library)
    if lowered.schema is None:
        raise SchemaError("/: allOf: no value satisfies the schema: two of its parts contradict each other.")
    return Enforcement(library.name, "json", json.dumps(lowered.schema), tuple(lowered.findings), lowered.narrow)


def compile_error(one: Enforcement, tokenizer: Any) -> str | None:
    """Return why the grammar can't be compiled for a tokenizer, in ``BUILD_SECONDS`` or at all; None if it can.

    Args:
        one: the constraint.
        tokenizer: a tokenizer of Hugging Face's ``transformers``.
    """
    return _within_time(functools.partial(LIBRARIES[one.backend].build_error, one, tokenizer))


def _within_time(check: Callable[[], str | None]) -> str | None:
    """Return the result of ``check``, or an error message if it takes longer than ``BUILD_SECONDS``.

    ``check`` runs in a thread: these libraries can't be interrupted, but they release the GIL.
    """
    result: list[str | None] = []
    thread = threading.Thread(target=lambda: result.append(check()), daemon=True)
    thread.start()
    thread.join(BUILD_SECONDS)
    return result[0] if result else f"not done after {BUILD_SECONDS:g} seconds: use smaller counts or fewer choices"
