"""Text in a prompt stays text: it can't fake a chat template's role markers, or media."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from daft_vllm.engine.text.tokenize import Tokenizer

_OPEN, _CLOSE = "\ue000", "\ue001"  # from the private use area: they mean nothing to templates and tokenizers

_MARKER = re.compile(r"<\|.*\|>")


class TokenGuard:
    """Tokenizes chats so that only the chat template itself can write the tokens of the chat template.

    If a text contains the name of such a token (``<|im_start|>``, ``<end_of_turn>``, ``<start_of_image>``), a tokenizer
    makes the token itself of it. That would end the user's message, or begin a message of the assistant. So the name is
    hidden while the template is applied, and then tokenized in two pieces: the model reads the same characters, and
    sees no marker. All other text is tokenized as usual.

    These are guarded: the tokenizer's special tokens; added tokens that the chat template writes, or with a name like a
    marker (``<|...|>``); and the placeholders of media. In earlier messages of the assistant, only special tokens and
    placeholders are guarded, because templates look for the others there (``</think>``). Markers that are not tokens
    (``[INST]`` of the first Mistral models) can't be distinguished from text. For one thread at a time.

    Args:
        tokenizer: the model's tokenizer.
        template: the chat template's text. None: there is none.
        placeholders: texts that stand for media in a prompt.
        tokenize: tokenizes lists of texts with ``tokenizer``. None: a ``Tokenizer`` is made.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | None,
        placeholders: Iterable[str] = (),
        tokenize: Tokenizer | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._tokenize = tokenize or Tokenizer(tokenizer)
        added = {str(token): (number, token.special) for number, token in tokenizer.added_tokens_decoder.items()}
        for token in tokenizer.all_special_tokens:
            added[str(token)] = (tokenizer.convert_tokens_to_ids(token), True)
        special = {name: number for name, (number, is_special) in added.items() if is_special and name.strip()}
        written = {
            name: number
            for name, (number, _) in added.items()
            if name.strip() and ((template and name in template) or _MARKER.fullmatch(name))
        }
        self._ids = frozenset([*special.values(), *written.values()])
        media = [text for text in placeholders if text.strip()]
        self._special = _any_of([*special, *media])
        self._all = _any_of([*special, *written, *media])
        self._secret = secrets.token_hex(8)
        self._hidden: list[str] = []
        self._number: dict[str, int] = {}
        self._marks = re.compile(f"{_OPEN}{self._secret}([0-9]+){_CLOSE}")

    def hide_markers(self, value: Any, *, assistant: bool = False) -> Any:
        """Return a text with the names of guarded tokens hidden. In a list or dict, hide them in all texts and keys."""
        if isinstance(value, str):
            names = self._special if assistant else self._all
            return names.sub(self._mark, value) if names.search(value) else value
        if isinstance(value, Mapping):
            return {
                self.hide_markers(name, assistant=assistant): self.hide_markers(one, assistant=assistant)
                for name, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.hide_markers(one, assistant=assistant) for one in value]
        return value

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of rendered chats, one list each."""
        if not texts:
            return []
        plain = [i for i, text in enumerate(texts) if not self._marks.search(text)]
        result: list[list[int]] = [[]] * len(texts)
        if plain:
            encoded = self._tokenize([texts[i] for i in plain], special_tokens=False)
            for i, token_ids in zip(plain, encoded, strict=True):
                result[i] = token_ids
        for i in set(range(len(texts))).difference(plain):
            result[i] = self._in_pieces(texts[i])
        return result

    def _mark(self, match: re.Match[str]) -> str:
        name = match.group()
        if name not in self._number:
            self._number[name] = len(self._hidden)
            self._hidden.append(name)
        return f"{_OPEN}{self._secret}{self._number[name]}{_CLOSE}"

    def _in_pieces(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for i, piece in enumerate(self._marks.split(text)):
            token_ids += self._as_text(self._hidden[int(piece)]) if i % 2 else self._encode(piece)
        return token_ids

    def _as_text(self, name: str) -> list[int]:
        """Return the token ids of a token's name as text: cut in two so that neither piece has a guarded token."""
        for cut in range(1, len(name)):
            token_ids = self._encode(name[:cut]) + self._encode(name[cut:])
            if not self._ids.intersection(token_ids):
                return token_ids
        return []  # there is no such cut, as in a name of one character: it is left out

    def _encode(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return token_ids


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")
