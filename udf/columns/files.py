"""Reads the files and URLs that a table names, and only from places that the caller allows."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import daft
from daft.io import IOConfig

from daft_vllm.engine.media.limits import MEMORY, SECONDS, Budget
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.errors import OptionError
from daft_vllm.giving_up import within
from daft_vllm.udf.columns.credentials import credentials_in, opened, refused, sealed
from daft_vllm.udf.columns.local import read_local
from daft_vllm.udf.columns.network.http import fetch
from daft_vllm.wording import brief, shown

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_LEAST_MEMORY = 64 << 20
_HTTP = ("http", "https")
_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf"))
"""Schemes that Daft reads from the network. Daft knows more schemes, some of them for files of this machine."""


@dataclass(frozen=True)
class FileAccess:
    """Says where the files that a prompt's columns name may be read from. Picklable.

    A table of prompts is untrusted input: a path in it could lead to a private key, and a URL to a service that only
    this machine can reach. So local files and private networks are read only if they are allowed here.

    A file on an HTTP server is fetched from exactly the address that was checked; this holds for redirects too. If the
    environment names a proxy (``https_proxy``, ``no_proxy``), that one has to guard the network. Daft reads object
    stores.

    Args:
        folders: local folders. Regular files below them may be read, after symbolic links are resolved. Hard links
            can't be told from files: keep folders in which others can make links out of this list.
        private_network: whether HTTP URLs may lead to addresses that are not public (``10.0.0.1``, ``localhost``, the
            metadata services of clouds).
        io_config: Daft's settings for object stores, for example their credentials. HTTP servers get none of them.
            Credentials stay in this process: with engines in other processes (Ray, ``use_process=True``) they
            come from the environment there.
        max_bytes: the size of the largest file. Default 64 MiB.
        max_pages: the most pages of a PDF. Default 32.
        max_seconds: how long the files of one cell may take together, fetched and decoded. A server that asks to wait
            longer (``Retry-After``) isn't asked again. Time that a file waits for its turn doesn't count. Default 60.
        max_memory: how many bytes of memory decoding one file may take. Default 1 GiB, enough for an image of 119
            million pixels.
    """

    folders: Sequence[str] = ()
    private_network: bool = False
    io_config: IOConfig | None = field(default=None, repr=False)
    max_bytes: int = 64 << 20
    max_pages: int = 32
    max_seconds: float = SECONDS
    max_memory: int = MEMORY

    def __post_init__(self) -> None:
        folders = [self.folders] if isinstance(self.folders, (str, os.PathLike)) else list(self.folders)
        for folder in folders:
            if not os.path.isdir(folder):
                raise OptionError(f"FileAccess allows the folder {str(folder)!r}, which is not there.")
        object.__setattr__(self, "folders", tuple(os.path.realpath(folder) for folder in folders))
        if self.max_bytes < 1 or self.max_pages < 1:
            raise OptionError(f"max_bytes and max_pages are at least 1, got {self.max_bytes} and {self.max_pages}.")
        seconds = self.max_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise OptionError(f"max_seconds is a number of seconds above 0, got {seconds!r}.")
        if self.max_memory < _LEAST_MEMORY:
            raise OptionError(
                f"max_memory is a number of bytes, at least {_LEAST_MEMORY} (64 MiB), got {self.max_memory}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the credentials out, which stay in this process."""
        return {**self.__dict__, "io_config": sealed(self.io_config)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the credentials again. Raises ``OptionError`` in another process than theirs."""
        self.__dict__.update({**state, "io_config": opened(state["io_config"])})

    def check_sent(self) -> None:
        """Raise ``OptionError`` if this has credentials: they are not sent to other processes."""
        if names := credentials_in(self.io_config):
            raise refused(names)

    def budget(self) -> Budget:
        """Return what the files of one more cell may cost."""
        return Budget(self.max_seconds, self.max_memory)

    def read(self, file: daft.File | str, budget: Budget | None = None) -> bytes:
        """Return a file's content.

        Args:
            file: a file, a path, a URL that Daft reads, or a ``data:`` URL.
            budget: the time that is left for it. Default: all of ``max_seconds``.

        Raises:
            MediaError: the file may not be read, doesn't exist, is too large, takes too long, or is a broken ``data:``
                URL.
        """
        url = file if isinstance(file, str) else file.path
        try:
            with (budget or self.budget()).spend() as seconds:
                data = self._from_data_url(url) if url.startswith("data:") else self._read(url, file, seconds)
        except MediaError:
            raise
        except Exception as e:
            raise MediaError("unavailable_media", f"{shown(url)} can't be read: {brief(e)}") from e
        if len(data) > self.max_bytes:
            raise self._too_large(url)
        return data

    def digest(self, file: daft.File | str) -> bytes:
        """Return a digest of the file's location and these settings. It stands for the content, which is not read."""
        place = file if isinstance(file, str) else (file.path, file.position, file._inner.size())
        text = repr((place, self)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16, key=self._key).digest()

    @functools.cached_property
    def _key(self) -> bytes:
        return hashlib.blake2b(pickle.dumps(self.io_config)).digest() if self.io_config is not None else b""

    def _too_large(self, url: str) -> MediaError:
        message = f"{shown(url)} has more than {self.max_bytes} bytes: raise files=FileAccess(max_bytes=...)"
        return MediaError("unavailable_media", message)

    def _read(self, url: str, file: daft.File | str, seconds: float) -> bytes:
        scheme = found[1].lower() if (found := _SCHEME.match(url)) else ""
        start, most = _range_of(file, self.max_bytes + 1)
        if scheme in ("", "file"):
            path = _path_of(url, scheme)
            return within(seconds, lambda: read_local(path, self.folders, most, start), self.budget().too_slow)
        if scheme in _HTTP:
            return fetch(url, most, start, seconds=seconds, private_network=self.private_network)
        if scheme not in _STORES:
            known = ", ".join(sorted((*_HTTP, *_STORES)))
            raise MediaError("unavailable_media", f"{shown(url)}: the scheme {scheme[:40]} is none of {known}")
        # Daft's readers try again for many minutes. Above, a folder of a network may hang.
        return within(seconds, lambda: self._read_from_store(url, file), self.budget().too_slow)

    def _read_from_store(self, url: str, file: daft.File | str) -> bytes:
        opened = daft.File(url, self.io_config) if isinstance(file, str) else file
        if opened.position is None and opened.size() > self.max_bytes:
            raise self._too_large(url)
        with opened.open() as stream:
            data: bytes = stream.read(self.max_bytes + 1)
        return data

    def _from_data_url(self, url: str) -> bytes:
        head, _, data = url.partition(",")
        if not head.endswith(";base64"):
            raise MediaError("invalid_media", f"a data: URL must be in base64, got {head[:60]!r}")
        if len(data) * 3 // 4 > self.max_bytes + 2:
            raise self._too_large(url)
        try:
            return base64.b64decode(data, validate=True)
        except ValueError as e:
            raise MediaError("invalid_media", f"the data: URL isn't base64: {e}") from e


def _path_of(url: str, scheme: str) -> str:
    if scheme and not url[len(scheme) :].startswith(":///"):
        raise MediaError("unavailable_media", f"{shown(url)} is no file: URL of this machine: write file:///path")
    path = url[len(scheme) + 3 :] if scheme else url
    if path.startswith("~"):
        raise MediaError("unavailable_media", f"{shown(url)} is relative to a home folder: write the full path")
    return path


def _range_of(file: daft.File | str, most: int) -> tuple[int, int]:
    """Return the byte at which a file begins, and how many bytes to read at most."""
    if isinstance(file, str) or file.position is None:
        return 0, most
    size = file._inner.size()
    return file.position, most if size is None else min(size, most)
