"""The error of a medium that can't be used."""

from __future__ import annotations

from daft_vllm.engine.requests.outcome import ErrorCode, ErrorValue


class MediaError(Exception):
    """A medium can't be used. ``error`` says why, as the error of its row."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.error = ErrorValue(code, message)
        super().__init__(*self.error)
