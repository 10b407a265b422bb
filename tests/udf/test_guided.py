"""Guided output is never wrong in silence: valid, or an error value that says why."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import daft
import pytest
from daft import col
from pydantic import BaseModel, Field

from daft_vllm import Constraint, EngineConfig, OfflineEngine, PerRow, Request, SamplingOptions, close_engines, prompt
from daft_vllm.engine.constraints.libraries import guidance
from daft_vllm.errors import EngineStartError, OptionError, SchemaError
from daft_vllm.udf.worker import engines
from tests.conftest import ENGINE_ARGS, TINY_ARGS

Letter = Annotated[str, Field(pattern="^[A-Z]$")]


class Line(BaseModel):
    code: Annotated[str, Field(pattern="^[A-Z]{2}-[0-9]{1,4}$")]
    amount: Annotated[int, Field(ge=0, le=9999)]


class Invoice(BaseModel):
    paid: bool
    kind: Literal["in", "out"]
    lines: Annotated[list[Line], Field(min_length=1, max_length=3)]
    note: Annotated[str, Field(max_length=20)]


@pytest.fixture(scope="module")
def ask_tiny(tiny: str) -> Iterator[Any]:
    """``prompt`` with a model of random weights; the session's engine is hidden meanwhile, or it would be closed."""
    hidden = dict(engines._open)
    engines._open.clear()

    def ask(column: str, return_format: Any = None, **options: Any) -> daft.Expression:
        options = {"model": tiny, "engine_args": TINY_ARGS, "gpus": 0, "use_process": False, **options}
        return prompt(col(column), return_format, **options)

    yield ask
    close_engines()
    engines._open.update(hidden)


def test_500_rows_of_random_weights_are_all_valid(ask_tiny: Any) -> None:
    df = daft.from_pydict({"id": list(range(500)), "q": [f"Invoice {i}" for i in range(500)]})
    answer = ask_tiny("q", Invoice, temperature=1.0, max_tokens=400, details=True)
    rows = df.with_column("a", answer).to_pydict()
    assert rows["id"] == list(range(500))
    assert [row["error"] for row in rows["a"] if row["error"]] == []
    for row in rows["a"]:
        assert Invoice.model_validate(row["value"]) == Invoice.model_validate_json(row["text"])
    assert len({row["text"] for row in rows["a"]}) > 400


def test_500_rows_of_too_few_tokens_are_all_cut_off(ask_tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    df = daft.from_pydict({"id": list(range(500)), "q": [f"Invoice {i}" for i in range(500)]})
    with caplog.at_level(logging.WARNING, logger="daft_vllm"):
        answer = ask_tiny("q", Invoice, max_tokens=5, details=True)
    assert "max_tokens=5 is too few" in caplog.text
    rows = df.with_column("a", answer).to_pydict()
    assert rows["id"] == list(range(500))
    assert {row["error"].split(":")[0] for row in rows["a"]} == {"truncated"}
    assert all(row["value"] is None and row["text"].startswith('{"paid"') for row in rows["a"])


def test_retries_ask_again_with_more_tokens(ask_tiny: Any, tmp_path: Path) -> None:
    df = daft.from_pydict({"id": list(range(20)), "q": [f"Retry {i}" for i in range(20)]})
    answer = ask_tiny(
        "q", Invoice, temperature=1.0, max_tokens=4, retries=5, details=True, progress_folder=str(tmp_path)
    )
    rows = df.with_column("a", answer).to_pydict()
    assert rows["id"] == list(range(20))
    assert all(row["error"] is None for row in rows["a"])
    (file,) = tmp_path.glob("*.json")
    counters = json.loads(file.read_text())
    assert counters["rows"] == counters["done"] == 20
    assert counters["retried"] >= 40
    assert counters["failed"] == 0


def test_what_no_grammar_holds_is_left_to_validation(ask_tiny: Any) -> None:
    """Two letters out of two are the same half of the time; drawn anew they may differ."""
    schema = {
        "type": "array",
        "items": {"enum": ["a", "b"]},
        "uniqueItems": True,
        "minItems": 2,
        "maxItems": 2,
    }
    with pytest.raises(SchemaError, match=r'/: uniqueItems: .*\n.*enforce="validate"'):
        ask_tiny("q", schema)
    df = daft.from_pydict({"id": list(range(40)), "q": [f"Letters {i}" for i in range(40)]})
    drawn = {"enforce": "validate", "temperature": 1.0, "details": True, "max_tokens": 20}
    once = df.with_column("a", ask_tiny("q", schema, **drawn)).to_pydict()["a"]
    wrong = [row for row in once if row["error"]]
    assert 0 < len(wrong) < 40
    assert all(row["error"].startswith("invalid_output") and json.loads(row["text"]) for row in wrong)
    assert all(sorted(row["value"]) == ["a", "b"] for row in once if not row["error"])
    again = df.with_column("a", ask_tiny("q", schema, retries=3, **drawn)).to_pydict()["a"]
    assert sum(row["error"] is not None for row in again) < len(wrong)


def test_schemas_of_both_libraries_share_an_engine_and_do_not_mix(tiny: str) -> None:
    """600 rows of 30 schemas in turns: each gets its own constant, held by one library or the other."""
    constraints = [
        Constraint(json_schema=json.dumps({"const": f"row {i}"}), backend="guidance" if i % 2 else "xgrammar")
        for i in range(30)
    ]
    long = SamplingOptions(max_tokens=40)
    requests = [Request(f"Row {i}", constraint=constraints[i % 30], sampling=long) for i in range(600)]
    with OfflineEngine(EngineConfig(tiny, TINY_ARGS)) as engine:
        outcomes = engine.run(requests, dedupe=False)
        assert [json.loads(outcome.text or "") for outcome in outcomes] == [f"row {i % 30}" for i in range(600)]
        # Enforced by llguidance alone: xgrammar knows no multiples without bounds.
        sevens = Constraint(json_schema=json.dumps({"type": "integer", "multipleOf": 7, "minimum": 1}))
        drawn = SamplingOptions(max_tokens=30, temperature=1.0)
        numbers = engine.run([Request(f"Number {i}", constraint=sevens, sampling=drawn) for i in range(50)])
        assert all(int(outcome.text or "") % 7 == 0 for outcome in numbers if outcome.error is None)
        assert sum(outcome.error is None for outcome in numbers) > 25


def test_an_answer_that_llguidance_gave_up_on_is_an_error(ask_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes it for complete. Here the trial before the load is left out, which would have refused the format."""
    monkeypatch.setattr(guidance, "guidance_failure", lambda *_: None)
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,499}\S+$", "maxLength": 20000}
    answer = ask_tiny("q", words, backend="guidance", temperature=1.0, max_tokens=60, details=True)
    df = daft.from_pydict({"q": [f"Row {i}" for i in range(4)]}).with_column("a", answer)
    rows = df.to_pydict()["a"]
    assert {row["error"] and row["error"].split(":")[0] for row in rows} in ({"format_failed"}, {None, "format_failed"})
    assert all((row["value"] is None) == (row["error"] is not None) for row in rows)


def test_a_seed_and_a_prompt_of_several_steps(tiny: str) -> None:
    """On a CPU vLLM 0.32 dies of it by itself (``engine/patches/cpu/generators.py``)."""
    args = {**TINY_ARGS, "max_num_batched_tokens": 64, "max_num_seqs": 32}
    drawn = SamplingOptions(max_tokens=8, temperature=1.0, seed=11)
    with OfflineEngine(EngineConfig(tiny, args)) as engine:
        first = engine.run([Request("word " * 300, sampling=drawn)], dedupe=False)
        second = engine.run([Request("other " * 10), Request("word " * 300, sampling=drawn)], dedupe=False)
    assert first[0].error is None
    assert first[0].text == second[1].text


def test_another_format_for_each_row(ask_tiny: Any) -> None:
    kinds = ["line", "yes", None, "nowhere", "line"]
    df = daft.from_pydict({"id": [0, 1, 2, 3, 4], "q": ["a", "b", "c", "d", "e"], "kind": kinds})
    formats = PerRow(col("kind"), {"line": Line, "yes": ["yes", "no"]})
    df = df.with_column("a", ask_tiny("q", formats, temperature=1.0, seed=2, max_tokens=100, details=True)).collect()
    rows = df.to_pydict()["a"]
    assert [row["error"] is None for row in rows] == [True, True, False, False, True]
    assert rows[0]["value"]["yes"] is None
    assert set(rows[0]["value"]["line"]) == {"code", "amount"}
    assert rows[1]["value"] == {"line": None, "yes": rows[1]["text"]}
    assert rows[1]["text"] in ("yes", "no")
    assert "there is no format 'nowhere'" in rows[3]["error"]
    with pytest.raises(SchemaError, match="PerRow takes a column"):
        PerRow("kind", {"a": int})  # type: ignore[arg-type]


def test_the_model_is_told_the_fields(engine: OfflineEngine, smollm2: str) -> None:
    class Verdict(BaseModel):
        mood: Literal["calm", "stormy"] = Field(description="What the sea is like.")

    def tokens(**options: Any) -> int:
        df = daft.from_pydict({"q": ["Waves of ten metres."]})
        answer = prompt(
            col("q"),
            Verdict,
            model=smollm2,
            engine_args=ENGINE_ARGS,
            gpus=0,
            use_process=False,
            details=True,
            **options,
        )
        (row,) = df.with_column("a", answer).to_pydict()["a"]
        assert row["value"]["mood"] in ("calm", "stormy")
        return int(row["prompt_tokens"])

    bare = tokens(describe_schema=False)
    assert tokens() > bare + 10
    assert tokens(system_message="You are a sailor.") > tokens(
        system_message="You are a sailor.", describe_schema=False
    )


def test_a_model_that_is_told_the_fields_fills_them(engine: OfflineEngine, smollm2: str) -> None:
    class City(BaseModel):
        capital: str
        in_europe: bool

    countries = ["France", "Spain", "Italy", "Germany", "Japan", "Egypt", "Peru", "Kenya"]
    df = daft.from_pydict({"country": countries})
    question = daft.functions.format("What is the capital of {}?", col("country"))

    def capitals(**options: Any) -> list[str]:
        answer = prompt(question, City, model=smollm2, engine_args=ENGINE_ARGS, gpus=0, use_process=False, **options)
        return [value["capital"] for value in df.with_column("a", answer).to_pydict()["a"]]

    told = capitals()
    assert "Paris" in told[0]
    assert "" not in told
    # Without, this model leaves most of them empty: if it no longer does, the description is not what helps.
    assert capitals(describe_schema=False).count("") > len(countries) / 2


THINKS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% else %}</think>{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with tokens that begin and end its thinking."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("thinker")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    # In place of two tokens that exist, since the model's vocabulary is full.
    data = json.loads((folder / "tokenizer.json").read_text())
    for old, new in (("<repo_name>", "<think>"), ("<reponame>", "</think>")):
        place = data["model"]["vocab"].pop(old)
        data["model"]["vocab"][new] = place
        for added in data["added_tokens"]:
            if added["id"] == place:
                added.update(content=new, special=False)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for name in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        config.pop(name, None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(THINKS)
    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("</think>") != tokenizer.unk_token_id
    return str(folder)


def test_thinking_is_no_part_of_the_answer(ask_tiny: Any, thinker: str) -> None:
    from transformers import AutoTokenizer

    end = AutoTokenizer.from_pretrained(thinker).convert_tokens_to_ids("</think>")
    args = {**TINY_ARGS, "reasoning_parser": "deepseek_r1"}
    df = daft.from_pydict({"id": list(range(8)), "q": [f"Think of {i}" for i in range(8)]})

    def answers(**options: Any) -> list[Any]:
        drawn = {"temperature": 1.0, "seed": 4, "max_tokens": 120, "details": True}
        answer = ask_tiny("q", Line, model=thinker, engine_args=args, **{**drawn, **options})
        rows = df.with_column("a", answer).to_pydict()
        assert rows["id"] == list(range(8))
        return list(rows["a"])

    # The end of the thinking is about as likely as all other tokens together, so it comes after a few of them.
    thought = answers(thinking=True, logit_bias={end: 9.0})
    assert all(row["error"] is None for row in thought), [row["error"] for row in thought]
    assert any(row["reasoning"] for row in thought)
    assert all(row["text"].startswith("{") and "think>" not in row["reasoning"] for row in thought)
    without = answers()
    assert all(row["error"] is None and row["reasoning"] is None for row in without)
    never = answers(thinking=True, logit_bias={end: -100.0}, max_tokens=20)
    assert {row["error"].split(":")[0] for row in never} == {"truncated"}
    assert all(row["reasoning"] and row["value"] is None for row in never)


def test_thinking_needs_a_parser(smollm2: str) -> None:
    with pytest.raises(OptionError, match="reasoning_parser"):
        prompt(col("q"), model=smollm2, gpus=0, thinking=True)


def test_a_parser_that_vllm_does_not_have(tiny: str) -> None:
    with pytest.raises((OptionError, EngineStartError), match="no_such_parser"):
        OfflineEngine(EngineConfig(tiny, {**TINY_ARGS, "reasoning_parser": "no_such_parser"}))


def test_a_constraint_without_effect_ends_the_job(
    smollm2: str, engine: OfflineEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.shared_engine(EngineConfig(smollm2, dict(ENGINE_ARGS), gpus=0), check_chat_template=True)
    monkeypatch.setattr(engine, "_backends_checked", set())
    run = engine.run
    monkeypatch.setattr(
        engine, "run", lambda requests, **options: run([_unconstrained(one) for one in requests], **options)
    )
    with pytest.raises(EngineStartError, match="constraints have no effect"):
        engine.check_constraints([Constraint(choices=("a",))], Request(None))


def _unconstrained(request: Request) -> Request:
    from dataclasses import replace

    return replace(request, constraint=None)


def test_a_bad_schema_is_refused_before_anything_is_loaded(smollm2: str) -> None:
    """In a process of its own: neither vLLM nor a model has been touched when the error comes."""
    script = f"""
import sys
from daft import col
from daft_vllm import prompt
from daft_vllm.errors import SchemaError
schema = {{"type": "object", "properties": {{"a": {{"type": "array", "uniqueItems": True, "items": {{}}}}}}}}
try:
    prompt(col("q"), schema, model={smollm2!r}, gpus=0)
except SchemaError as e:
    print(e)
print("loaded", sorted({{"vllm", "torch", "transformers"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "/properties/a: uniqueItems: " in done.stdout
    assert "loaded []" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enforce": "maybe"}, "enforce is"),
        ({"backend": "outlines"}, "backend is"),
        ({"retries": -1}, "retries is"),
        ({"engine_args": {"structured_outputs_config": {"backend": "outlines"}}}, "write backend="),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prompt(col("q"), Line, gpus=0, **options)
