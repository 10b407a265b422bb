"""Finds regular expressions in texts of strangers: in time that grows with the text, or in a process that is killed."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable

from pydantic_core import SchemaError as CoreSchemaError
from pydantic_core import SchemaValidator, core_schema

from daft_vllm.engine.constraints.limits.killable import CallFailed, KillableFunction
from daft_vllm.engine.constraints.limits.rust import NotRust, rust_regex


class UndecidedMatch(ValueError):
    """It takes too long to find out whether an expression matches a text."""


@functools.lru_cache(maxsize=1024)
def is_linear(pattern: str, *, whole: bool = False) -> bool:
    """Whether the time to match an expression grows with the length of the text only."""
    return _rust(pattern, whole=whole) is not None


@functools.lru_cache(maxsize=1024)
def matcher(pattern: str, *, whole: bool = False) -> Callable[[str], bool]:
    """Return the function that tells whether an expression matches a text.

    It raises ``UndecidedMatch`` if that takes too long. This only happens to expressions that Rust's engine has no form
    for, such as ones with lookaround or back references.

    Args:
        pattern: in Python's syntax.
        whole: whether it has to match from beginning to end (``re.fullmatch``), or is searched for (``re.search``).

    Raises:
        re.error: Python can't read the expression.
    """
    re.compile(pattern)
    slow = functools.partial(_matches_elsewhere, pattern, whole)
    rust = _rust(pattern, whole=whole)
    if rust is None:
        return slow
    # Texts with half of a surrogate pair can't be given to Rust.
    return lambda text: rust.isinstance_python(text) if _is_unicode(text) else slow(text)


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _rust(pattern: str, *, whole: bool) -> SchemaValidator | None:
    try:
        written = rust_regex(pattern, whole=whole)
        return SchemaValidator(core_schema.str_schema(pattern=written, regex_engine="rust-regex"))
    except (NotRust, CoreSchemaError):  # the second: with its counts written out, it takes more than 10 MiB
        return None


def match_here(pattern: str, text: str, whole: bool) -> bool:
    """Return whether an expression matches a text, by Python's engine, in whatever time that takes."""
    return (re.fullmatch if whole else re.search)(pattern, text) is not None


_elsewhere = KillableFunction(pickle.dumps(match_here))


def _matches_elsewhere(pattern: str, whole: bool, text: str) -> bool:
    try:
        return bool(_elsewhere(pattern, text, whole))
    except CallFailed as e:
        raise UndecidedMatch(f"whether {pattern[:80]!r} matches can't be found out: {e}") from None
