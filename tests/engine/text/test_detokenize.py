"""A text that is decoded at once is the text that vLLM decodes token by token."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import shrunken
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.text.detokenize import Detokenizer
from daft_vllm.engine.text.params import sampling_params

TEXTS = (
    " and so on: naïve café, 東京タワー, 👩‍👩‍👧‍👦 done.\n\n```python\nprint('x')\n```",
    '{"name": "Ünïcödé", "tags": ["a", "b"]}',
    "   leading and trailing   ",
)


def of_vllm(tokenizer: Any, prompt: Sequence[int], answer: Sequence[int], params: Any, *, stopped: bool) -> str:
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    request = SimpleNamespace(request_id="0", sampling_params=params, prompt_token_ids=list(prompt))
    stream = FastIncrementalDetokenizer(tokenizer, request)
    for i, token in enumerate(answer):
        stream.update([token], stopped and i == len(answer) - 1)
    return stream.get_next_output_text(finished=True, delta=False)


def sentencepiece_tokenizer() -> Any:
    """Return a tokenizer that writes spaces as Llama-2's and Mistral's do, and drops one at the start of a text."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁and", "▁so", "▁on", "so", "on", "x", ":", "▁▁"]
    core = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Prepend("▁")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("kind", ["smollm2", "gemma", "sentencepiece"])
def test_the_same_texts(kind: str, smollm2: str) -> None:
    from transformers import AutoTokenizer

    tokenizers = {
        "smollm2": lambda: AutoTokenizer.from_pretrained(smollm2),
        "gemma": lambda: shrunken.gemma_tokenizer(smollm2),
        "sentencepiece": sentencepiece_tokenizer,
    }
    tokenizer = tokenizers[kind]()
    ours = Detokenizer(tokenizer)
    rng = random.Random(0)
    if kind == "sentencepiece":
        answers = [[rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 12))] for _ in range(300)]
        prompt = [1, 261, 262, 263]
    else:
        whole = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        answers = [
            ids[: rng.randrange(1, len(ids) + 1)] for ids in whole for _ in range(40)
        ]  # some end in the middle of a character
        answers += [[*ids, tokenizer.eos_token_id] for ids in whole]
        answers += [[rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 12))] for _ in range(300)]
        prompt = tokenizer("A prompt of a few words, and this:")["input_ids"]
    differing = 0
    for answer in answers:
        for options in ({}, {"skip_special_tokens": False}, {"include_stop_str_in_output": True}):
            sampling = SamplingOptions(**options)
            assert ours.can_detokenize(sampling)
            params = sampling_params(sampling, None, detokenize=True)
            for stopped in (False, True):
                made = ours.text(prompt, answer, params, stopped=stopped)
                if made != of_vllm(tokenizer, prompt, answer, params, stopped=stopped):
                    # Random bytes that are no text: vLLM's stream gets stuck at them, or starts again.
                    assert "\ufffd" in tokenizer.decode(answer), (answer, made)
                    differing += 1
    assert differing < 0.1 * 6 * len(answers)


def test_words_that_stop_are_vllms(smollm2: str) -> None:
    from transformers import AutoTokenizer

    ours = Detokenizer(AutoTokenizer.from_pretrained(smollm2))
    assert not ours.can_detokenize(SamplingOptions(stop="x"))
    assert not ours.can_detokenize(SamplingOptions(spaces_between_special_tokens=False))
    assert not Detokenizer(object()).can_detokenize(SamplingOptions())


def test_vllm_still_decodes_the_prompt() -> None:
    """Our detokenizer is needed because vLLM first decodes the whole prompt. If this fails, ours can go."""
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    assert "ids=request.prompt_token_ids" in inspect.getsource(FastIncrementalDetokenizer.__init__)
