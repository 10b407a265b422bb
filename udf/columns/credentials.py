"""Credentials of object stores stay in this process: what is pickled only refers to them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from daft.io import IOConfig

from daft_vllm.errors import OptionError
from daft_vllm.secrets import secrets_in

_STORES = ("s3", "azure", "gcs", "hf", "unity", "tos", "cos", "gravitino", "goosefs", "hdfs", "opendal_backends")
_PROCESS = uuid.uuid4().hex
_kept: dict[str, IOConfig] = {}


class Reference(NamedTuple):
    """Stands in a pickle for settings with credentials. ``names`` are the credentials' names, ``s3.access_key``."""

    key: str
    names: tuple[str, ...]


def credentials_in(io_config: IOConfig | None) -> tuple[str, ...]:
    """Return the names of the keys, tokens and passwords in Daft's settings of object stores."""
    return () if io_config is None else tuple(dict.fromkeys(_credentials(io_config)))


def _credentials(io_config: Any) -> Iterator[str]:
    for store in _STORES:
        settings = getattr(io_config, store, None)
        if settings is None:
            continue
        if not isinstance(settings, dict):
            names = (name for name in dir(settings) if not name.startswith("_"))
            values = {name: getattr(settings, name) for name in names}
            settings = {name: value for name, value in values.items() if not callable(value)}
        yield from secrets_in(settings, store)
    if "Bearer token" in repr(io_config.http):  # it can't be read
        yield "http.bearer_token"
    if "security_token: Some" in repr(io_config.tos):
        yield "tos.security_token"


def refused(names: tuple[str, ...]) -> OptionError:
    """Return the error of a process that needs credentials which another one has."""
    return OptionError(
        f"io_config has {', '.join(names)}, and keys are not sent to engines in other processes (Ray, "
        "use_process=True): leave them out, and set the store's own variables in the environment of these "
        "processes (AWS_ACCESS_KEY_ID and so on), or use S3Config(credentials_provider=...)."
    )


def sealed(io_config: IOConfig | None) -> IOConfig | Reference | None:
    """Return what a pickle may hold: the settings, or a reference if they have credentials."""
    names = credentials_in(io_config)
    if io_config is None or not names:
        return io_config
    key = f"{_PROCESS}-{id(io_config)}"
    _kept[key] = io_config
    return Reference(key, names)


def opened(kept: IOConfig | Reference | None) -> IOConfig | None:
    """Return the settings that ``sealed`` has taken.

    Raises:
        OptionError: another process has them.
    """
    if not isinstance(kept, Reference):
        return kept
    if kept.key not in _kept:
        raise refused(kept.names)
    return _kept[kept.key]
