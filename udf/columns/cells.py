"""Turns the cells of a prompt's columns into what the engine takes: text, parts or conversations."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import daft
from daft import DataType, Series

from daft_vllm.engine.media.arrays import image_from_array
from daft_vllm.engine.media.decode import audio_from_bytes, image_from_bytes
from daft_vllm.engine.media.limits import Budget
from daft_vllm.engine.requests.content import Content, Conversation, Media, Message, merge_texts
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.errors import OptionError
from daft_vllm.udf.columns.documents import PDF, document_contents, is_document
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import PartKind

Prompt = str | tuple[Content, ...] | Conversation | None
_DECODERS: Mapping[Literal["image", "audio"], Callable[[bytes, Budget], Any]] = {
    "image": image_from_bytes,
    "audio": audio_from_bytes,
}
_THREADS = 16
"""How many cells are read at once, where cells may name files or be documents. Most of them wait for a server."""
_MEDIA_FIELDS: Mapping[str, PartKind] = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}


class _Cell(NamedTuple):
    """An image in a column. It becomes an array only when ``pixels`` is called."""

    column: Series
    place: int

    def pixels(self) -> Any:
        return self.column.slice(self.place, self.place + 1).to_pylist()[0]


class CellReader:
    """Turns cells into prompts.

    Args:
        kinds: what each column of the first message holds, in the order of the prompt.
        turns: for each later turn, what the columns of its message hold. In the columns that ``prompts`` takes, the
            column of the answer comes before them.
        files: says where files may be read from.
        takes_images: returns whether the model takes images. Called only for PDF documents.
        skip_blank: whether a blank text counts as null.
    """

    def __init__(
        self,
        kinds: Sequence[PartKind],
        turns: Sequence[Sequence[PartKind]],
        files: FileAccess,
        takes_images: Callable[[], bool],
        *,
        skip_blank: bool = False,
    ) -> None:
        self._kinds = kinds
        self._turns = turns
        self._files = files
        self._takes_images = takes_images
        self._skip_blank = skip_blank
        self.num_columns = len(kinds) + sum(1 + len(turn) for turn in turns)

    def prompts(self, columns: Sequence[Series]) -> Iterator[Prompt | Outcome]:
        """Return each row's prompt, or an error outcome if the row's cells can't be made into a prompt.

        Raises:
            OptionError: a column is of a type that can't be in a prompt.
        """
        start = len(self._kinds)
        prompts = self._messages(self._kinds, columns[:start])
        for number, kinds in enumerate(self._turns, 1):
            answers = _texts(columns[start])
            asked = self._messages(kinds, columns[start + 1 : start + 1 + len(kinds)])
            start += 1 + len(kinds)
            prompts = map(partial(_continued, number), prompts, answers, asked)
        return prompts

    def _messages(self, kinds: Sequence[PartKind], columns: Sequence[Series]) -> Iterator[Prompt | Outcome]:
        """Return each row's message: a text, a tuple of parts, or a whole conversation."""
        if len(columns) == 1 and kinds[0] == "auto":
            (column,) = columns
            if _is_conversation(column):
                return self._read_in_threads(self._conversation, column.to_pylist())
            if _is_plain(column.datatype()):
                texts = _texts(column)
                return (self._or_blank(text, "the prompt") for text in texts) if self._skip_blank else iter(texts)
        cells = [self._cells(kind, column) for kind, column in zip(kinds, columns, strict=True)]
        rows = zip(*cells, strict=True)
        if all(kind == "auto" and _is_plain(column.datatype()) for kind, column in zip(kinds, columns, strict=True)):
            return (self._or_outcome(self._parts, row) for row in rows)
        return self._read_in_threads(self._parts, rows)

    def _read_in_threads(self, read: Callable[[Any], Prompt], cells: Iterable[Any]) -> Iterator[Prompt | Outcome]:
        """Read several cells at once, so that a slow file holds up no other row. The results are in order."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="daft-vllm-cells") as pool:
            yield from pool.map(partial(self._or_outcome, read), cells)

    def _is_blank(self, value: Any) -> bool:
        return self._skip_blank and isinstance(value, str) and not value.strip()

    def _or_blank(self, text: str | None, what: str) -> str | Outcome | None:
        return Outcome.failed("blank_prompt", f"{what} is blank") if self._is_blank(text) else text

    def _or_outcome(self, read: Callable[[Any], Prompt], cell: Any) -> Prompt | Outcome:
        try:
            return read(cell)
        except MediaError as e:
            return Outcome.failed(*e.error)
        except Exception as e:
            return Outcome.failed("invalid_prompt", f"the prompt can't be read: {type(e).__name__}: {e}")

    def _cells(self, kind: PartKind, column: Series) -> Iterator[Any]:
        """Return pairs of ``kind`` and a cell, as ``_contents`` takes them."""
        dtype = column.datatype()
        if dtype.is_image() or dtype.is_fixed_shape_image():
            nulls = column.is_null().to_pylist()
            for i in range(len(column)):  # one by one: all of them as arrays would take the memory twice
                yield kind, None if nulls[i] else _Cell(column, i)
        elif kind == "auto" and _is_plain(dtype):
            for text in _texts(column):
                yield kind, text
        else:
            _check_part(dtype)
            for value in column.to_pylist():
                yield kind, value

    def _parts(self, row: Sequence[tuple[PartKind, Any]]) -> Prompt:
        for number, (kind, value) in enumerate(row, 1):
            if value is None:
                raise MediaError("null_prompt", f"part {number} of the prompt is null")
            if kind == "auto" and self._is_blank(value):
                raise MediaError("blank_prompt", f"part {number} of the prompt is blank")
        parts = merge_texts(part for kind, value in row for part in self._contents(kind, value, self._files.budget()))
        return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts

    def _contents(self, kind: PartKind, value: Any, budget: Budget) -> Iterator[Content]:
        """Return the content of a cell, or of an entry of its list. The cell's files share its budget."""
        from PIL import Image

        if value is None:
            raise MediaError("null_prompt", "an entry of a list in the prompt is null")
        if isinstance(value, _Cell):
            yield _array_media(value.pixels(), lambda: image_from_array(value.pixels()))
        elif isinstance(value, str) and kind == "auto":
            if self._is_blank(value):
                raise MediaError("blank_prompt", "an entry of a list in the prompt is blank")
            yield value
        elif isinstance(value, (list, tuple)):
            for one in value:
                yield from self._contents(kind, one, budget)
        elif isinstance(value, (str, daft.File)):
            yield from self._named(kind, value, budget)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            yield from self._of_bytes(kind, bytes(value), budget)
        elif isinstance(value, Image.Image):
            pixels = value.convert("RGBA")
            yield _array_media(pixels, partial(image_from_array, pixels))
        elif hasattr(value, "__array__"):
            yield _array_media(value, partial(image_from_array, value))
        else:
            raise MediaError(
                "invalid_media",
                f"a {type(value).__name__} can't be in a prompt: use text, bytes, a file, an image or an array",
            )

    def _named(self, kind: PartKind, file: str | daft.File, budget: Budget) -> Iterator[Content]:
        """Return the content of a file, or at a path or URL. Images and sounds are read when their row's turn comes."""
        name = file if isinstance(file, str) else file.path
        guessed, _ = mimetypes.guess_type(_file_name(name))
        known = _kind_of(guessed) if kind == "auto" and guessed is not None and _is_known(guessed) else kind
        if known == "image" or known == "audio":
            decode = _DECODERS[known]
            yield Media(known, lambda: decode(self._files.read(file, budget), budget), self._files.digest(file), None)
        else:
            yield from self._of_bytes(known, self._files.read(file, budget), budget, _file_name(name), guessed)

    def _of_bytes(
        self, kind: PartKind, data: bytes, budget: Budget, name: str = "document", mime: str | None = None
    ) -> Iterator[Content]:
        from daft.daft import guess_mimetype_from_content

        mime = guess_mimetype_from_content(data) or mime or ("text/plain" if kind == "document" else "unknown")
        known = _kind_of(mime) if kind == "auto" else kind
        if known == "image" or known == "audio":
            digest = hashlib.blake2b(data, digest_size=16).digest()
            yield Media(known, partial(_DECODERS[known], data, budget), digest, None)
        else:
            if not is_document(mime):
                raise MediaError("invalid_media", f"{name} is of type {mime}: use text, HTML, CSV, JSON, XML or PDF")
            as_images = mime == PDF and self._takes_images()
            yield from document_contents(
                name,
                mime,
                data,
                as_images=as_images,
                max_pages=self._files.max_pages,
                max_bytes=self._files.max_bytes,
                budget=budget,
            )

    def _conversation(self, messages: Any) -> Prompt:
        if messages is None:
            return None
        if not messages:
            raise MediaError("empty_prompt", "the conversation has no message")
        budget = self._files.budget()
        conversation = Conversation(tuple(self._message(number, one, budget) for number, one in enumerate(messages, 1)))
        if self._skip_blank and all(map(self._is_blank, conversation.messages[-1].content)):
            raise MediaError("blank_prompt", "the last message of the conversation is blank")
        return conversation

    def _message(self, number: int, message: Any, budget: Budget) -> Message:
        given = {name: value for name, value in (message or {}).items() if value is not None}
        role, content = given.pop("role", None), given.pop("content", "")
        if not isinstance(role, str) or not role:
            raise MediaError("invalid_prompt", f"message {number} of the conversation has no role")
        parts = content if isinstance(content, (list, tuple)) else [content]
        return Message(role, tuple(one for part in parts for one in self._message_part(number, part, budget)), given)

    def _message_part(self, number: int, part: Any, budget: Budget) -> Iterator[Content]:
        if isinstance(part, str):
            yield part
            return
        if not isinstance(part, Mapping):
            raise MediaError("invalid_prompt", f"message {number} has content of type {type(part).__name__}")
        given = {name: value for name, value in part.items() if value is not None}
        kind = given.pop("type", None)
        if kind == "text" and isinstance(given.get("text"), str):
            yield given["text"]
        elif kind in _MEDIA_FIELDS and kind in given:
            value = given[kind]
            if isinstance(value, Mapping):  # OpenAI's form: an object with a URL, or with data in base64
                value = value.get("url") or f"data:;base64,{value.get('data', '')}"
            yield from self._contents(_MEDIA_FIELDS[kind], value, budget)
        else:
            raise MediaError(
                "invalid_prompt",
                f"message {number} has a part of type {kind!r}: use text, {', '.join(_MEDIA_FIELDS)}, and put the "
                "content under the name of the type",
            )


def _continued(number: int, so_far: Prompt | Outcome, answer: str | None, asked: Prompt | Outcome) -> Prompt | Outcome:
    """Return ``so_far`` with its answer and the next message; an error outcome if one of them is null or failed."""
    if isinstance(so_far, Outcome):
        return so_far
    if isinstance(asked, Outcome):
        return asked
    if so_far is None or answer is None or asked is None or isinstance(asked, Conversation):
        what = "the prompt" if so_far is None else f"turn {number} of the prompt"
        return Outcome.failed("null_prompt", f"{what} is null")
    before = so_far.messages if isinstance(so_far, Conversation) else (Message("user", _content(so_far)),)
    return Conversation((*before, Message("assistant", (answer,)), Message("user", _content(asked))))


def _content(message: str | tuple[Content, ...]) -> tuple[Content, ...]:
    return (message,) if isinstance(message, str) else message


def _array_media(array: Any, load: Callable[[], Any]) -> Media:
    import numpy as np

    pixels = np.ascontiguousarray(array)
    digest = hashlib.blake2b(repr((pixels.shape, pixels.dtype.str)).encode(), digest_size=16)
    digest.update(pixels.reshape(-1).view(np.uint8).data)
    return Media("image", load, digest.digest())


def _file_name(url: str) -> str:
    """Return the file name that the model sees: without a URL's query, which may hold a signature, and printable."""
    if url.startswith("data:"):
        return "document"
    path = urlsplit(url).path if "://" in url else url
    return "".join(c for c in unquote(path).rpartition("/")[2] if c.isprintable())[:100] or "document"


def _is_known(mime: str) -> bool:
    return is_document(mime) or mime.startswith(tuple(f"{kind}/" for kind in _DECODERS))


def _kind_of(mime: str) -> PartKind:
    for kind in _DECODERS:
        if mime.startswith(f"{kind}/"):
            return kind
    if is_document(mime):
        return "document"
    raise MediaError("invalid_media", f"content of type {mime} can't be in a prompt: use images, sounds or documents")


def _texts(column: Series) -> list[str | None]:
    texts: list[str | None] = column.cast(DataType.string()).to_pylist()
    return texts


def _is_plain(dtype: DataType) -> bool:
    """Whether a column's cells are text, or are converted to text."""
    return bool(
        dtype.is_string()
        or dtype.is_numeric()
        or dtype.is_boolean()
        or dtype.is_temporal()
        or dtype.is_decimal128()
        or dtype.is_null()
    )


def _is_conversation(column: Series) -> bool:
    """Whether the cells are lists of messages. In a column of Python objects, the first that isn't null decides."""
    dtype = column.datatype()
    if dtype.is_list() and dtype.dtype.is_struct():
        return "role" in dtype.dtype.fields
    if not (dtype.is_python() or (dtype.is_list() and dtype.dtype.is_python())):
        return False
    first = next((cell for cell in column.to_pylist() if cell is not None), None)
    return isinstance(first, (list, tuple)) and all(isinstance(one, Mapping) and "role" in one for one in first)


def _check_part(dtype: DataType) -> None:
    inner = dtype
    while inner.is_list() or inner.is_fixed_size_list():
        inner = inner.dtype
    if inner.is_struct() or inner.is_map() or inner.is_interval():
        raise OptionError(
            f"a column of type {dtype} can't be part of a prompt: take a field of it, or write it as text. "
            "A conversation (a list of structs with role and content) must be the only column in messages."
        )
