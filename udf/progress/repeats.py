"""Keeps a line of Daft's off the screen that repeats, without the reason, what the exception of a query says."""

from __future__ import annotations

import logging
import re

_LOGGER = "daft_local_execution"
_REPEATED = re.compile(r"Error when running pipeline node (?:UDF )?prompt$")


class RepeatsFilter(logging.Filter):
    """Drops the line of Daft 0.7 that a column of ``prompt()`` has failed. Daft raises the exception as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a record."""
        return record.name != _LOGGER or _REPEATED.match(record.getMessage()) is None


class _WithoutHandlers(RepeatsFilter):
    """Does so where Python prints the line because logging isn't set up. Whoever has set it up gets every line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return logging.getLogger(_LOGGER).hasHandlers() or super().filter(record)


_filter = _WithoutHandlers()


def hide_repeats() -> None:
    """Hide the line from now on, unless the user's logging is set up. Safe to call again."""
    logging.getLogger(_LOGGER).addFilter(_filter)
