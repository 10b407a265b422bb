"""Words of one token each, so that a text has as many tokens as words."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

FEWEST_WORDS = 1000
SPACE = "Ġ"
"""How byte-level BPE vocabularies write a leading space."""


class Vocabulary:
    """A model's tokenizer and its single-token words.

    Only the ``tokenizers`` library reads it: importing transformers or vLLM here would change the load time of the arm
    that is measured.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        candidates = sorted(
            word
            for token in tokenizer.get_vocab()
            if token.startswith(SPACE) and len(word := token[1:]) >= 3 and word.isascii() and word.islower()
            if word.isalpha()
        )
        ids = self.token_ids([f" {word}" for word in candidates])
        # Tokens that begin every text (a BOS token, in some models) don't belong to the word.
        self._prefix = len(self.token_ids([""])[0])
        self.words = [word for word, one in zip(candidates, ids, strict=True) if len(one) == self._prefix + 1]
        if len(self.words) < FEWEST_WORDS:
            raise ValueError(f"the tokenizer has {len(self.words)} single-token words: it is no byte-level BPE")

    @classmethod
    def of_model(cls, model: str) -> Vocabulary:
        """Read the tokenizer of a model: a folder, or a name on the Hugging Face hub."""
        return _of_model(model)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, with those that the tokenizer adds itself."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def text(self, tokens: int, rng: random.Random) -> str:
        """Return a text of exactly ``tokens`` tokens; texts may be joined and their tokens add up."""
        return "".join(f" {word}" for word in rng.choices(self.words, k=tokens))


@functools.cache
def _of_model(model: str) -> Vocabulary:
    return Vocabulary(Tokenizer.from_file(str(_model_file(model, "tokenizer.json"))))


def model_config(model: str) -> dict[str, Any]:
    """Return the content of a model's ``config.json``."""
    config: dict[str, Any] = json.loads(_model_file(model, "config.json").read_text(encoding="utf-8"))
    return config


def _model_file(model: str, name: str) -> Path:
    if Path(model).is_dir():
        return Path(model) / name
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(model, name))
