"""Beginnings that texts share are tokenized once, and each text gets the same token ids as from the tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks import shrunken
from daft_vllm.engine.text import tokenize
from daft_vllm.engine.text.guard import TokenGuard
from daft_vllm.engine.text.tokenize import Tokenizer
from tests.hostile.texts import hostile_values

# How the families split texts into words: the patterns in their tokenizer.json.
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _ENDS
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _ENDS
)
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _ENDS
)


def split(*patterns: str) -> Any:
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-3": lambda: split(LLAMA_3),
    "qwen-2": lambda: split(QWEN_2),
    "gpt-4o": lambda: split(GPT_4O),
    "deepseek-v3": lambda: split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3),
}


@pytest.fixture(scope="module")
def prose() -> list[str]:
    """Descriptions of installed packages: enough words to learn a few thousand tokens from."""
    texts = [text[:20000] for d in distributions() if (text := d.metadata.get_payload())]
    assert sum(map(len, texts)) > 100_000
    return texts


def learned(prose: list[str], pre_tokenizer: Any, normalizer: Any = None, *, bytes_: bool = True) -> Any:
    """Return a tokenizer that has learned a vocabulary from the descriptions."""
    core = tokenizers.Tokenizer(models.BPE(unk_token=None if bytes_ else "<unk>"))
    core.pre_tokenizer = pre_tokenizer
    core.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytes_ else sorted({*"".join(tokenize._UNITS), "▁"}),
        show_progress=False,
    )
    core.train_from_iterator(prose, trainer)
    return core


def of_transformers(core: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma_like(prose: list[str]) -> Any:
    """Return a tokenizer that doesn't split texts into words, but has no token with a blank after a letter."""
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Split("\n", "isolated")]
    )
    core = learned(prose, words, normalizers.Replace(" ", "▁"), bytes_=False)
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return core


def sharing(rng: random.Random, units: Sequence[str], texts: int) -> list[str]:
    """Return texts that share beginnings on several levels."""
    made = ["".join(rng.choices(units, k=rng.randint(100, 300)))]
    while len(made) < texts:
        base = rng.choice(made)
        made.append(base[: rng.randint(0, len(base))] + "".join(rng.choices(units, k=rng.randint(0, 120))))
    rng.shuffle(made)
    return made


def same_as_the_tokenizer(tokenizer: Any, rounds: int = 40, units: Sequence[str] = ()) -> int:
    """Compare texts that share beginnings; return how many times they were cut."""
    ours = Tokenizer(tokenizer)
    assert ours.cuts
    rng = random.Random(1)
    words = ["word", " The", " of", " dog", " and", *tokenize._UNITS, *units]
    cut = 0
    for _ in range(rounds):
        texts = sharing(rng, words, 12)
        cut += tokenize._cut(texts) is not None
        for special_tokens in (False, True):
            expected = tokenizer(texts, add_special_tokens=special_tokens)["input_ids"]
            assert ours(texts, special_tokens=special_tokens) == expected
    return cut


@pytest.mark.parametrize("family", PRE_TOKENIZERS)
def test_families_that_split_texts_into_words(prose: list[str], family: str) -> None:
    core = learned(prose, PRE_TOKENIZERS[family](), normalizers.NFC() if family == "qwen-2" else None)
    if family == "llama-3":
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert same_as_the_tokenizer(of_transformers(core)) > 20


def test_a_family_that_does_not_split(prose: list[str]) -> None:
    core = gemma_like(prose)
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    assert same_as_the_tokenizer(of_transformers(core)) > 20


@pytest.mark.parametrize("family", ["gemma", "qwen", "llama"])
def test_chat_templates_tokens_among_the_texts(smollm2: str, family: str) -> None:
    tokenizer = {
        "gemma": shrunken.gemma_tokenizer,
        "qwen": shrunken.qwen_tokenizer,
        "llama": shrunken.llama_tokenizer,
    }[family](smollm2)
    names = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    assert same_as_the_tokenizer(tokenizer, rounds=12, units=[*names, *hostile_values()]) > 6


def test_what_is_not_cut(prose: list[str]) -> None:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core = learned(prose, byte_level)

    def cuts(**parts: Any) -> bool:
        changed = tokenizers.Tokenizer.from_str(core.to_str())
        for name, part in parts.items():
            setattr(changed, name, part)
        return Tokenizer(of_transformers(changed)).cuts

    assert cuts()
    # These add a blank at the start of each part, or have a normalizer of an unknown kind.
    assert not cuts(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    assert not cuts(pre_tokenizer=pre_tokenizers.Metaspace())
    assert not cuts(normalizer=normalizers.Prepend("▁"))
    assert not cuts(normalizer=normalizers.Strip())
    # Words that continue after a blank, as in SuperBPE; a pattern that looks back across the cut; no rule for words.
    assert not cuts(pre_tokenizer=split(r"\p{N}{1,3}"))
    assert not cuts(pre_tokenizer=split(r"(?<=a) \p{L}+|" + LLAMA_3))
    assert not cuts(pre_tokenizer=None)
    unsplit = gemma_like(prose)
    assert Tokenizer(of_transformers(unsplit)).cuts
    superwords = learned(prose, pre_tokenizers.Split(".", "isolated"), normalizers.Replace(" ", "▁"), bytes_=False)
    superwords.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    assert any("e▁" in token for token in superwords.get_vocab())
    assert not Tokenizer(of_transformers(superwords)).cuts
    # A cut could go through these added tokens.
    for token in ("<begin of text>", AddedToken("END", rstrip=True)):
        changed = of_transformers(tokenizers.Tokenizer.from_str(core.to_str()))
        changed.add_tokens([token])
        assert not Tokenizer(changed).cuts
    # A tokenizer in Python.
    assert not Tokenizer(object()).cuts


def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each later call of the tokenizer appends its number of characters."""
    counts: list[int] = []
    encode = Tokenizer._encode

    def counted(self: Tokenizer, texts: Sequence[str], special_tokens: bool) -> list[list[int]]:
        counts.append(sum(map(len, texts)))
        return encode(self, texts, special_tokens)

    monkeypatch.setattr(Tokenizer, "_encode", counted)
    return counts


def test_each_shared_beginning_once(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer(AutoTokenizer.from_pretrained(smollm2))
    counts = tokenized(monkeypatch)
    outer = [f"Instructions {i}: " + "answer each question in a word. " * 50 for i in range(3)]
    inner = [f"{outer[i % 3]}\nDocument {i}: " + "there is much to be read here. " * 20 for i in range(9)]
    texts = [f"{inner[i % 9]}\nQuestion: what is {i} and {i + 1}?" for i in range(90)]
    ours(texts, special_tokens=False)
    fewest = sum(map(len, outer)) + sum(len(text) - len(outer[0]) for text in inner)
    own = sum(map(len, texts)) - 10 * sum(map(len, inner))
    # The text between the last cut and the end of the shared part is tokenized again: some characters for each row.
    assert counts == [pytest.approx(fewest + own, abs=20 * len(texts))]
    assert sum(map(len, texts)) > 10 * counts[0]
    ours(texts[:1], special_tokens=False)
    ours([f"{i} rows that share nothing" for i in range(90)], special_tokens=False)
    assert counts[1:] == [len(texts[0]), sum(len(f"{i} rows that share nothing") for i in range(90))]
    assert ours([], special_tokens=True) == []


@pytest.mark.parametrize("text", ["x" * 300_000, "12 " * 100_000, "a b " * 75_000, "\n" * 300_000])
def test_long_texts(text: str) -> None:
    """If the work grew with the square of the length, this would take minutes."""
    texts = [f"{text}{i}" for i in range(64)]
    cut = tokenize._cut(texts)
    if cut is not None:
        assert ["".join(cut.pieces[i] for i in path) for path in cut.paths] == texts
    assert (cut is not None) == ("a" in text)


def test_chats_that_share_a_system_message(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    guard = TokenGuard(tokenizer, tokenizer.chat_template)
    system = "Classify each package by its summary. " * 40
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": system}, {"role": "user", "content": f"package {i}"}], tokenize=False
        )
        for i in range(32)
    ]
    counts = tokenized(monkeypatch)
    assert guard.tokenize(chats) == tokenizer(chats, add_special_tokens=False)["input_ids"]
    assert sum(counts) < sum(map(len, chats)) / 8
