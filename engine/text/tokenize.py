"""Tokenizes many texts. A beginning that several texts share is tokenized once.

A tokenizer takes about 3 to 6 µs of one core for a token, even if the model finds all tokens in the prefix cache. So a
prompt of a thousand tokens, nearly all of them the same instructions in every row, costs a few milliseconds. If rows
share a beginning, it is cut off at a place where a token ends in any case, and tokenized once for the whole batch.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

_LEAST = 64
"""Fewest characters of a shared piece: tokenizing one more piece costs about as much as twenty more characters."""
_LOOK_BACK = 2000
"""How many characters are searched for a place to cut: a text of numbers only has no such place."""
_WORTHWHILE = 0.8
"""Texts are cut only if that leaves less than this share of their characters to tokenize."""


class Tokenizer:
    """Tokenizes lists of texts, each exactly as the model's tokenizer does.

    Texts are cut between a letter and the space or line break that follows it, if the tokenizer has no tokens across
    such places (see ``_can_cut``). All other tokenizers get whole texts.

    Args:
        tokenizer: the model's tokenizer, from transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._around: tuple[list[int], list[int]] = ([], [])
        self.cuts = _can_cut(tokenizer)
        """Whether shared beginnings are tokenized once."""
        if self.cuts:
            bare, whole = self._encode(["a"], False)[0], self._encode(["a"], True)[0]
            starts = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
            self.cuts = len(starts) == 1
            if self.cuts:
                self._around = whole[: starts[0]], whole[starts[0] + len(bare) :]

    def __call__(self, texts: Sequence[str], *, special_tokens: bool) -> list[list[int]]:
        """Return the token ids of each text.

        Args:
            texts: any number of texts.
            special_tokens: whether to add the special tokens that the tokenizer puts before and after a text.
        """
        if not texts:
            return []
        cut = _cut(texts) if self.cuts and len(texts) > 1 else None
        if cut is None:
            return self._encode(texts, special_tokens)
        pieces = self._encode(cut.pieces, False)
        before, after = self._around if special_tokens else ([], [])
        return [[*before, *chain.from_iterable(pieces[i] for i in path), *after] for path in cut.paths]

    def _encode(self, texts: Sequence[str], special_tokens: bool) -> list[list[int]]:
        encoded = self._tokenizer(list(texts), add_special_tokens=special_tokens, return_attention_mask=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids


class _Cut(NamedTuple):
    """Texts cut into pieces. Text ``i`` consists of the pieces with the indices ``paths[i]``, in this order."""

    pieces: list[str]
    paths: list[tuple[int, ...]]


def _cut(texts: Sequence[str]) -> _Cut | None:
    """Cut texts so that each shared beginning is one piece. Shared beginnings may contain each other.

    Return None if that saves too little.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    # How many characters each text has in common with the text before it.
    common = [0, *(_common(texts[a], texts[b]) for a, b in pairwise(order))]
    if sum(common) < (1 - _WORTHWHILE) * sum(map(len, texts)):
        return None
    pieces: list[str] = []
    paths: list[tuple[int, ...]] = [()] * len(texts)
    # Runs of neighbours in `order`. The texts of a run are the same up to `start`, and have been cut there.
    runs: list[tuple[int, int, int, tuple[int, ...]]] = [(0, len(order), 0, ())]
    while runs:
        low, high, start, path = runs.pop()
        first = texts[order[low]]
        if high - low == 1:
            paths[order[low]] = (*path, len(pieces))
            pieces.append(first[start:])
            continue
        shared = min(common[low + 1 : high])
        end = _last_cut(first, start, shared)
        if end - start >= _LEAST:
            path = (*path, len(pieces))
            pieces.append(first[start:end])
            start = end
        # Split the run where neighbours have too little in common after `start`, at least where they have the least.
        edges = [i for i in range(low + 1, high) if common[i] < max(start + _LEAST, shared + 1)]
        runs += [(a, b, start, path) for a, b in zip([low, *edges], [*edges, high], strict=True)]
    if sum(map(len, pieces)) > _WORTHWHILE * sum(map(len, texts)):
        return None
    return _Cut(pieces, paths)


def _common(a: str, b: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _last_cut(text: str, start: int, end: int) -> int:
    """Return the last place between ``start`` and ``end`` where a text can be cut; ``start`` if none is near."""
    low = max(start + 1, end - _LOOK_BACK)
    while True:
        end = max(text.rfind(" ", low, end), text.rfind("\n", low, end))
        if end < 0:
            return start
        if text[end - 1].isalpha():
            return end


# Parts of tokenizers by their names in tokenizer.json. They look only at the characters next to a place in a text.
_NORMALIZERS = {"NFC"}
_SPLITTERS = {"ByteLevel", "Split", "Digits", "Punctuation"}
_POST_PROCESSORS = {"ByteLevel", "TemplateProcessing"}

_UNITS = [
    *("a", "B", "dog", "ß", "é", "дом", "漢字", "ไทย", "ー", "7", "٣", "2048"),
    *(".", ",", "'", "'s", "\u2019", "/", "-", "_", "(", '"', "<", "|", ">"),
    *(" ", " ", "  ", "\n", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000"),
    *("\u0301", "\u200d", "\U0001f642", "\ue000"),
]
"""Parts of words, numbers, punctuation and spaces: one or more of each kind that tokenizers treat differently."""


def _can_cut(tokenizer: Any) -> bool:
    """Whether the token ids of a text are the token ids of its parts, joined.

    There are two such kinds of tokenizers. The first splits a text into words, and its model (BPE) sees one word at a
    time: no word may go on from a letter to a space. The second does not split a text (Gemma): no token of its
    vocabulary may have a letter before a space.
    """
    from vllm.v1.engine.detokenizer import uses_fast_detokenizer

    if not uses_fast_detokenizer(tokenizer):
        return False
    backend = tokenizer._tokenizer
    model = backend.model
    if backend.truncation is not None or backend.padding is not None or type(model).__name__ != "BPE" or model.dropout:
        return False
    normalizers, splitters, others = (
        list(_parts(part)) for part in (backend.normalizer, backend.pre_tokenizer, backend.post_processor)
    )
    known = (
        all(part["type"] in _NORMALIZERS or _replaces_blanks(part) for part in normalizers)
        and all(part["type"] in _SPLITTERS and not part.get("add_prefix_space") for part in splitters)
        and all(part["type"] in _POST_PROCESSORS for part in others)
        # A regular expression that looks back would see across a cut.
        and not any("(?<" in part.get("pattern", {}).get("Regex", "") for part in splitters)
    )
    if not known or any(_reaches_over(token) for token in backend.get_added_tokens_decoder().values()):
        return False
    if _splits_at_blanks(backend):
        return True
    whole = all(part["type"] == "Split" and part["pattern"] == {"String": " "} for part in splitters)
    vocabulary = backend.get_vocab()
    if not whole or model.ignore_merges or not {"▁", "\n"} <= vocabulary.keys():
        return False
    across = re.compile(r"[^\W\d_][ ▁\n]")
    return not any(map(across.search, vocabulary))


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a tokenizer's component as tokenizer.json has them."""
    pending = [] if component is None else [json.loads(component.__getstate__())]
    while pending:
        part = pending.pop()
        if part["type"] == "Sequence":
            pending += next(value for value in part.values() if isinstance(value, list))
        else:
            yield part


def _replaces_blanks(part: dict[str, Any]) -> bool:
    return bool(part["type"] == "Replace" and part["pattern"] == {"String": " "})


def _reaches_over(token: Any) -> bool:
    """Whether an added token may contain a letter and the space after it."""
    text = token.content
    within = any(a.isalpha() and b.isspace() for a, b in pairwise(text))
    return within or (token.rstrip and text[-1:].isalpha())


def _splits_at_blanks(backend: Any) -> bool:
    """Whether 300 random texts of all kinds of characters have the same words as a whole and when cut in two."""
    if backend.pre_tokenizer is None:
        return False

    def words(text: str) -> list[str]:
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]

    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices(_UNITS, k=40))
        place = _last_cut(text, 0, rng.randint(1, len(text)))
        if words(text) != words(text[:place]) + words(text[place:]):
            return False
    return True
