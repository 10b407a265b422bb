"""Sampling options: what vLLM refuses is found before the load, or is the error of its row alone."""

from __future__ import annotations

import math
from typing import Any

import daft
import pytest
from daft import DataType, Series, col, lit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daft_vllm import OfflineEngine, Request, prompt
from daft_vllm.engine.requests.sampling import REFUSED, SamplingOptions
from daft_vllm.engine.setup import sampling_rules
from daft_vllm.engine.setup.sampling_rules import check_sampling, gpu_limits
from daft_vllm.errors import OptionError
from tests.conftest import ENGINE_ARGS

NUMBERS = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, -1.0, -0.0, 2.5, 1e30, 1e-310]), st.floats(width=64), st.booleans()
)
INTEGERS = st.one_of(st.integers(), st.sampled_from([-1, 0, 2**31, 2**63, 2**64, -(2**63) - 1]))
FEW = st.one_of(st.integers(max_value=4), st.integers(min_value=2**31))
IDS = st.lists(st.one_of(INTEGERS, st.integers(0, 50_000)), max_size=4)
TEXTS = st.one_of(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=3))
BIASES = st.dictionaries(st.one_of(INTEGERS, st.integers(0, 50_000)), st.floats(), max_size=3)
ANYTHING = st.one_of(st.text(max_size=3), st.binary(max_size=3), NUMBERS, INTEGERS, IDS, TEXTS, BIASES)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "min_p": NUMBERS,
    "presence_penalty": NUMBERS,
    "frequency_penalty": NUMBERS,
    "repetition_penalty": NUMBERS,
    "top_k": INTEGERS,
    "seed": INTEGERS,
    "max_tokens": FEW,
    "min_tokens": INTEGERS,
    "thinking_token_budget": INTEGERS,
    "stop": TEXTS,
    "stop_token_ids": IDS,
    "include_stop_str_in_output": NUMBERS,
    "ignore_eos": NUMBERS,
    "bad_words": TEXTS,
    "logit_bias": BIASES,
    "allowed_token_ids": IDS,
    "skip_special_tokens": NUMBERS,
    "spaces_between_special_tokens": NUMBERS,
}


def test_every_option_has_a_kind() -> None:
    assert KINDS.keys() == SamplingOptions.model_fields.keys()


def ask(smollm2: str, return_format: Any = None, **options: Any) -> daft.Expression:
    fixed: dict[str, Any] = {"engine_args": ENGINE_ARGS, "gpus": 0, "use_process": False, "details": True}
    return prompt(col("q"), return_format, model=smollm2, **{"max_tokens": 4, **fixed, **options})


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bad_value_is_refused_or_is_the_error_of_its_row(
    name: str, engine: OfflineEngine, smollm2: str, data: st.DataObject
) -> None:
    """As a value it is refused before the load if and only if, in a column, it is its row's error."""
    values = data.draw(st.lists(st.one_of(KINDS[name], KINDS[name], ANYTHING), min_size=5, max_size=5))
    thinking = {"thinking": True} if name == "thinking_token_budget" else {}
    refused = []
    for value in values:
        try:
            ask(smollm2, **thinking, **{name: value})
            refused.append(False)
        except OptionError:
            refused.append(True)

    rows = [*([None] * 47), *values, *([None] * 48)]
    cells = Series.from_pylist(rows, "v", dtype=DataType.python())
    df = daft.from_pydict({"q": ["Say hi."] * 100, "v": cells})
    if thinking:  # this engine has no parser of thinking: no row can be asked to think
        with pytest.raises(OptionError, match="thinking"):
            ask(smollm2, **{name: col("v")})
        return
    answers = df.with_column("a", ask(smollm2, **{name: col("v")})).to_pydict()["a"]

    errors = [answer["error"] for answer in answers]
    assert errors[:47] == [None] * 47
    assert errors[52:] == [None] * 48
    codes = [error and error.split(":")[0] for error in errors[47:52]]
    assert codes == ["invalid_request" if bad else None for bad in refused], list(
        zip(values, errors[47:52], strict=True)
    )


def test_vllms_other_options_are_refused_as_values_and_as_columns() -> None:
    from vllm import SamplingParams

    others = set(SamplingParams.__struct_fields__) - set(SamplingOptions.model_fields)
    assert set(REFUSED) & others
    for name in others:
        for value in (1, "x", [2], math.nan, col("v")):
            with pytest.raises(OptionError, match=r"option|engine_args"):
                prompt(col("q"), **{name: value})


def test_cells_of_lists_maps_and_structs(engine: OfflineEngine, smollm2: str) -> None:
    df = daft.from_pydict(
        {
            "q": ["Count to nine."] * 3,
            "stop": [[" 2", "two"], None, ["zzz"]],
            "bad": [None, ["1", "One"], None],
            "only": [None, None, [260, 284]],
        }
    )
    df = df.with_column("bias", lit(None).cast(DataType.map(DataType.int64(), DataType.float64())))
    options = {
        "stop": col("stop"),
        "bad_words": col("bad"),
        "allowed_token_ids": col("only"),
        "logit_bias": col("bias"),
    }
    rows = df.with_column("a", ask(smollm2, max_tokens=8, **options)).to_pydict()["a"]
    assert [row["error"] for row in rows] == [None] * 3
    assert "1" not in rows[1]["text"]
    assert len(set(rows[2]["text"])) <= 4 * 2
    for cell in ([(260, 100.0)], {"260": 100.0}, {260: 100.0}):
        assert SamplingOptions.of({"logit_bias": cell}).logit_bias == {260: 100.0}


def test_vllms_rules_are_read_from_its_text() -> None:
    """If a release moves them, they can't be read any more, and this test fails."""
    from vllm import SamplingParams

    for options in (
        {"temperature": 3.0},
        {"top_p": 0.0},
        {"stop": ""},
        {"min_tokens": 9, "max_tokens": 2},
        {"top_k": -2},
    ):
        with pytest.raises(OptionError) as ours:
            check_sampling(options)
        with pytest.raises(Exception, match=r"must|cannot") as theirs:
            SamplingParams(**options)
        assert str(theirs.value).startswith(str(ours.value))
    for options in ({"stop_token_ids": [100]}, {"logit_bias": {100: 1.0}}, {"allowed_token_ids": []}):
        with pytest.raises(OptionError):
            check_sampling(options, vocabulary=100)
    assert gpu_limits().keys() == {"allowed_token_ids", "logit_bias", "stop_token_ids"}


def test_more_tokens_than_a_gpu_takes_are_refused_there(smollm2: str) -> None:
    from transformers import AutoTokenizer

    many = {"allowed_token_ids": list(range(1025)), "logit_bias": dict.fromkeys(range(1025), 1.0)}
    for name, value in many.items():
        check_sampling({name: value}, vocabulary=49152)
        with pytest.raises(OptionError, match="1024"):
            prompt(col("q"), model=smollm2, gpus=1, **{name: value})
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    words = {"bad_words": ["x " * 800]}
    check_sampling(words, tokenizer=tokenizer)
    with pytest.raises(OptionError, match="VLLM_MAX_BAD_WORDS_TOTAL_TOKENS"):
        check_sampling(words, tokenizer=tokenizer, gpus=1)


def test_stop_tokens_are_limited_on_a_gpu_with_min_tokens_only(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's runner for GPUs needs a list of the tokens that end an answer only to forbid them at its beginning."""
    monkeypatch.setattr("daft_vllm.engine.setup.devices.room.visible_gpus", lambda: ["0"])
    check_sampling({"stop_token_ids": list(range(5000))}, gpus=1)
    check_sampling({"stop_token_ids": list(range(5000)), "min_tokens": 1})
    check_sampling({"stop_token_ids": list(range(126)), "min_tokens": 1}, gpus=1, ends=[125, 500, 501])
    prompt(col("q"), model=smollm2, gpus=1, stop_token_ids=list(range(100, 227)), min_tokens=1)
    with pytest.raises(OptionError, match="are 129 tokens"):  # the model ends a text with one more
        prompt(col("q"), model=smollm2, gpus=1, stop_token_ids=list(range(100, 228)), min_tokens=1)
    for number, ends in ((129, []), (128, [200]), (127, [500, 501])):
        with pytest.raises(OptionError, match="with min_tokens vLLM takes at most 128"):
            check_sampling({"stop_token_ids": list(range(number)), "min_tokens": 1}, gpus=1, ends=ends)


def test_without_vllm_its_rules_are_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_rules, "_rules", lambda: None)
    check_sampling({"temperature": 3.0})


CHOICES = ["yes", "no"]
OBJECT = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


@pytest.mark.parametrize("name", ["ignore_eos", "allowed_token_ids"])
def test_what_contradicts_a_format_is_refused(name: str, engine: OfflineEngine, smollm2: str) -> None:
    value: Any = True if name == "ignore_eos" else [5]
    with pytest.raises(OptionError, match=f"{name} contradicts return_format"):
        ask(smollm2, CHOICES, **{name: value})
    df = daft.from_pydict({"q": ["Say yes."] * 2, "v": Series.from_pylist([value, None], dtype=DataType.python())})
    bad, good = df.with_column("a", ask(smollm2, CHOICES, **{name: col("v")})).to_pydict()["a"]
    assert f"{name} contradicts return_format" in bad["error"]
    assert good["value"] in CHOICES


def test_words_that_forbid_all_that_is_allowed(engine: OfflineEngine, smollm2: str) -> None:
    from transformers import AutoTokenizer

    (hello,) = AutoTokenizer.from_pretrained(smollm2).encode("Hello")
    with pytest.raises(OptionError, match="forbids every token"):
        ask(smollm2, bad_words=["Hello"], allowed_token_ids=[hello])


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["bad_words", "stop", "stop_token_ids"]), st.data())
def test_what_leaves_nothing_of_a_format_is_named(
    engine: OfflineEngine, smollm2: str, name: str, data: st.DataObject
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    part = data.draw(st.sampled_from(['{"', '":', "true", "false", "}"]))
    parts = ["true", "false"] if part in ("true", "false") else [part]
    pieces = list(dict.fromkeys(p for one in parts for i in range(len(one)) for p in (one[: i + 1], one[i:])))
    ids = [i for i in range(300, 2000) if any(p in tokenizer.decode([i]) for p in parts)] + tokenizer.encode(
        "".join(parts)
    )
    value: Any = {"bad_words": pieces, "stop": parts, "stop_token_ids": sorted(set(ids))}[name]
    df = daft.from_pydict({"q": ["Say yes."]})
    (row,) = df.with_column("a", ask(smollm2, OBJECT, max_tokens=30, **{name: value})).to_pydict()["a"]
    assert row["value"] is not None or name in row["error"], row
    if name == "stop":
        assert row["error"].startswith("invalid_output")


def test_rows_with_one_seed_have_draws_of_their_own(engine: OfflineEngine, smollm2: str) -> None:
    digit = [str(i) for i in range(10)]
    questions = [f"Draw a number, please. {i}" for i in range(60)]
    drawn: dict[str, Any] = {"temperature": 2.0, "seed": 7, "details": False, "dedupe": False}

    def answers(asked: list[str], **more: Any) -> dict[str, str]:
        df = daft.from_pydict({"q": asked}).with_column("a", ask(smollm2, digit, **{**drawn, **more})).to_pydict()
        return dict(zip(df["q"], df["a"], strict=True))

    first = answers(questions)
    assert len(set(first.values())) > 4  # with the same draws for all rows it was 1 or 2
    assert answers(questions[::-1], batch_size=7) == first
    assert answers(questions, seed=8) != first


def test_a_column_of_seeds_is_used_as_given(engine: OfflineEngine, smollm2: str) -> None:
    from daft_vllm.engine.text.params import row_seed, sampling_params, with_seed

    params = sampling_params(SamplingOptions(seed=5, temperature=1.0), None, detokenize=True)
    assert with_seed(params, 9).seed == 9
    assert params.seed == 5
    seeds = {row_seed(seed, text, media) for seed in (5, 6, -1) for text in (b"a", b"b") for media in (b"", b"m")}
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)

    random = SamplingOptions(seed=5, temperature=2.0, max_tokens=6)
    requests = [Request("Draw a word.", sampling=random, own_seed=own) for own in (False, False, True)]
    as_given, again, own = (outcome.text for outcome in engine.run(requests, dedupe=False))
    assert as_given == again
    assert own != as_given
    df = daft.from_pydict({"q": ["Draw a word."]})
    (row,) = df.with_column("a", ask(smollm2, temperature=2.0, max_tokens=6, seed=lit(5))).to_pydict()["a"]
    assert row["text"] == as_given


def test_bad_words_that_forbid_every_choice(smollm2: str) -> None:
    ask(smollm2, ["yes", "no"], bad_words=["no"])
    with pytest.raises(OptionError, match="bad_words has a word of every choice"):
        ask(smollm2, ["yes", "no"], bad_words=["yes", "no"])
    with pytest.raises(OptionError, match="bad_words has a word of every choice"):
        check_sampling({"bad_words": ["s"]}, constrained=True, choices=["yes sir", "yes"])
