"""Token ids of many texts, of which what several have in common is tokenized once.

A tokenizer takes some 3 to 6 µs of a core for a token, also where the prefix cache spares the model all of it: a prompt
of a thousand tokens, nearly all of them the same instructions in every row, costs a few milliseconds. Where rows share
their beginnings, these are cut off at a place that is the end of a token anyhow, and tokenized once for all of a batch.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

_LEAST = 64
"""Characters that a piece has at least: tokenizing another piece costs about as much as twenty more characters."""
_LOOK_BACK = 2000
"""Characters that are searched for a place to cut: there are texts of numbers alone."""
_WORTHWHILE = 0.8
"""Texts are cut only if that leaves less than this share of their characters to tokenize."""


class Tokenizer:
    """Tokenizes lists of texts, each exactly as the model's tokenizer does.

    Texts are cut between a letter and the blank or line break that follows it. No tokenizer of those that are cut has a
    token across such a place (see ``_can_cut``); all others get whole texts.

    Args:
        tokenizer: the model's, of transformers.
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
            special_tokens: whether the tokenizer adds the tokens that it puts around a text, such as the first.
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
    """Texts as pieces: text ``i`` is the pieces that ``paths[i]`` names, in order."""

    pieces: list[str]
    paths: list[tuple[int, ...]]


def _cut(texts: Sequence[str]) -> _Cut | None:
    """Cut texts so that what is common at their beginnings, on any number of levels, is one piece each.

    None if that spares too little.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    # Characters that each has in common with the one before it.
    common = [0, *(_common(texts[a], texts[b]) for a, b in pairwise(order))]
    if sum(common) < (1 - _WORTHWHILE) * sum(map(len, texts)):
        return None
    pieces: list[str] = []
    paths: list[tuple[int, ...]] = [()] * len(texts)
    # Runs of the order whose texts have been cut at `start`, up to which they are the same.
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
        # Apart go those that have too little more in common, and at least the two that have the least.
        edges = [i for i in range(low + 1, high) if common[i] < max(start + _LEAST, shared + 1)]
        runs += [(a, b, start, path) for a, b in zip([low, *edges], [*edges, high], strict=True)]
    if sum(map(len, pieces)) > _WORTHWHILE * sum(map(len, texts)):
        return None
    return _Cut(pieces, paths)


def _common(a: str, b: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
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


# Parts of tokenizers, by their names in tokenizer.json, that look no further than at what is next to a place in a text.
_NORMALIZERS = {"NFC"}
_SPLITTERS = {"ByteLevel", "Split", "Digits", "Punctuation"}
_POST_PROCESSORS = {"ByteLevel", "TemplateProcessing"}

_UNITS = [
    *("a", "B", "dog", "ß", "é", "дом", "漢字", "ไทย", "ー", "7", "٣", "2048"),
    *(".", ",", "'", "'s", "\u2019", "/", "-", "_", "(", '"', "<", "|", ">"),
    *(" ", " ", "  ", "\n", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000"),
    *("\u0301", "\u200d", "\U0001f642", "\ue000"),
]
"""Of what words, numbers, punctuation and spaces are made: what tokenizers tell apart."""


def _can_cut(tokenizer: Any) -> bool:
    """Whether the token ids of a text can be put together from those of its parts.

    They can where a text is split into words before the model sees them, each alone, and a word never goes on from a
    letter to a blank; or where it is not split (Gemma), but no token of the vocabulary has a letter before a blank.
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
        # A look back would see the other side of a cut.
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
    """Whether an added token may hold a letter and the blank after it."""
    text = token.content
    within = any(a.isalpha() and b.isspace() for a, b in pairwise(text))
    return within or (token.rstrip and text[-1:].isalpha())


def _splits_at_blanks(backend: Any) -> bool:
    """Whether a few hundred texts made of all kinds of characters fall into the same words as a whole and in parts."""
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
