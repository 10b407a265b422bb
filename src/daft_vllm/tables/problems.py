"""Why rows could not be written: what Daft and the operating system say about it."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from daft_vllm.errors import DaftVLLMError
from daft_vllm.wording import safe_line

_PROBE = 4 << 20
"""Bytes that are written to see whether a disk is full. Daft's error doesn't say."""
_OS_ERROR = re.compile(r"os error (\d+)")
"""How Rust's errors end that come from the operating system."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the name of Daft's class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return safe_line(lines[0].rpartition("DaftError::")[2]) if lines else type(error).__name__


def reason(error: OSError) -> str:
    """Return why the operating system refused something."""
    return os.strerror(error.errno).lower() if error.errno else first_line(error)


def problem_of(error: Exception, folder: Path) -> str | None:
    """Return why Daft could not write files into a folder. None: it had no problem with that."""
    if found := _OS_ERROR.search(str(error)):
        return os.strerror(int(found[1])).lower()
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE))
            probe.flush()
    except OSError as e:
        return reason(e)
    return None


def is_ours(error: BaseException | None) -> bool:
    """Whether an error is one of daft-vllm, or was caused by one."""
    while error is not None and not isinstance(error, DaftVLLMError):
        error = error.__cause__ or error.__context__
    return error is not None
