"""A store under a URL, such as ``s3://bucket/store``: it is copied to be read, and each batch of answers is an object.

Object stores can't append. An object is there completely or not at all: a writer that is killed leaves no part of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from daft_vllm.engine.store.manifest import NAME, open_folder
from daft_vllm.engine.store.segments import MAGIC, SUFFIX, frame_of, writer_name
from daft_vllm.errors import StoreError
from daft_vllm.folders import held_folder
from daft_vllm.wording import safe_line

COPY_PREFIX = "daft-vllm-store-"
"""How the names of folders begin that hold a copy of a store."""


def is_url(place: str) -> bool:
    """Whether a store's place is a URL, and not a folder."""
    return "://" in place


class RemoteStore:
    """The objects of a store under a URL. Credentials are those of the environment, as Arrow finds them.

    Args:
        url: ``s3://``, ``gs://``, ``abfs://``, ``hdfs://`` or ``file://``, as Arrow's file systems take them.

    Raises:
        StoreError: Arrow knows no such file system.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fs.FileSystem.from_uri(self.url)
        except Exception as e:  # the libraries that Arrow asks have errors of their own
            raise StoreError(f"the store {self.url} can't be reached: {_reason(e)}") from e

    def names(self) -> list[str]:
        """Return the names of its objects."""
        selector = fs.FileSelector(self._root, allow_not_found=True)
        return [one.base_name for one in self._files.get_file_info(selector) if one.type is not fs.FileType.Directory]

    def get(self, name: str) -> bytes:
        """Return an object."""
        with self._files.open_input_stream(f"{self._root}/{name}") as stream:
            return bytes(stream.read())

    def put(self, name: str, data: bytes) -> None:
        """Write an object, all of it or nothing, and return when it is kept."""
        if isinstance(self._files, fs.LocalFileSystem):  # others need no folder
            self._files.create_dir(self._root, recursive=True)
        with self._files.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(data)

    def copy_to(self, folder: Path) -> None:
        """Copy all objects into a folder.

        Raises:
            StoreError: they can't be read.
        """
        try:
            if self.names():
                local = fs.LocalFileSystem()
                fs.copy_files(self._root, str(folder), source_filesystem=self._files, destination_filesystem=local)
        except (OSError, ValueError) as e:
            raise StoreError(f"the store {self.url} can't be read: {_reason(e)}") from e


@contextlib.contextmanager
def local_copy(place: str) -> Iterator[Path]:
    """Give the folder of a store, for the time of the ``with`` block: a copy if it is under a URL.

    Raises:
        StoreError: it can't be read.
    """
    if not is_url(place):
        yield Path(place)
        return
    store = RemoteStore(place)
    with held_folder(COPY_PREFIX) as folder:
        store.copy_to(Path(folder))
        try:
            yield Path(folder)
        except StoreError as e:  # the user doesn't know the copy
            raise StoreError(str(e).replace(str(folder), store.url)) from e


def open_remote(url: str, asked: Mapping[str, str], *, changed: bool = False) -> None:
    """Do for a store under a URL what ``open_folder`` does for a folder."""
    store = RemoteStore(url)
    with held_folder(COPY_PREFIX) as name:
        folder = Path(name)
        try:
            for one in store.names():  # what they hold doesn't matter here
                (folder / one).write_bytes(store.get(one) if one == NAME else b"")
            before = (folder / NAME).read_bytes() if (folder / NAME).exists() else None
            open_folder(folder, asked, changed=changed, called=store.url)
            now = (folder / NAME).read_bytes()
            if now != before:
                store.put(NAME, now)
        except (OSError, pa.ArrowException) as e:
            raise StoreError(f"the store {store.url} can't be made: {_reason(e)}") from e


class ObjectWriter:
    """Writes each batch of answers as an object of its own. For one thread at a time.

    Args:
        store: the store.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._begin = writer_name()
        self._written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, and return when it is kept. Raises ``OSError`` if it can't be written."""
        self._store.put(f"{self._begin}-{self._written:08d}{SUFFIX}", MAGIC + frame_of(batch))
        self._written += 1

    def close(self) -> None:
        """Do nothing: no object is open."""


def _reason(error: Exception) -> str:
    return safe_line(str(error)) or type(error).__name__
