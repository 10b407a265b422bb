"""Images, conversations and untrusted values through the public API, on a shrunken Gemma-3."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import daft
import numpy as np
import pytest
from daft import col, lit
from daft.functions import decode_image, file, to_list
from daft.functions import prompt as daft_prompt
from PIL import Image

from benchmarks import shrunken
from daft_vllm import EngineConfig, FileAccess, Provider, image, prompt
from daft_vllm.errors import ModelError, OptionError
from daft_vllm.udf.worker.engines import shared_engine
from tests.conftest import TINY_ARGS
from tests.helpers import code_of
from tests.hostile.servers import SLOW, hostile_server
from tests.hostile.texts import hostile_values

pytestmark = pytest.mark.other_engine
ARGS = {**TINY_ARGS, "max_model_len": 1024}
TOKENS = 64
"""Tokens that the model takes an image for: two KV blocks."""


@pytest.fixture(scope="module")
def gemma3(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return shrunken.gemma3(smollm2, tmp_path_factory.mktemp("gemma3"), tokens=TOKENS)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths of 100 different images, from 64 x 64 to 512 x 512."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(3)
    paths = []
    for i in range(100):
        height, width = (int(side) for side in 2 ** draw.uniform(6, 9, size=2))
        path = folder / f"{i}.png"
        Image.fromarray(draw.integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)).resize(
            (width, height)
        ).save(path)
        paths.append(str(path))
    return paths


def answered(df: daft.DataFrame, messages: Any, model: str, **options: Any) -> list[dict[str, Any]]:
    """Return the details of every row, by id."""
    defaults = {"engine_args": ARGS, "gpus": 0, "use_process": False, "details": True, "max_tokens": 2}
    answer = prompt(messages, model=model, **(defaults | options))
    rows = df.select("id", answer.alias("answer")).to_pylist()
    assert sorted(row["id"] for row in rows) == sorted(df.to_pydict()["id"])
    return [row["answer"] for row in sorted(rows, key=lambda row: row["id"])]


def errors(rows: list[dict[str, Any]]) -> list[str | None]:
    return [code_of(row) for row in rows]


def test_images_by_path_with_broken_and_missing_ones(gemma3: str, pictures: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(pictures[0]).read_bytes()[:60])
    paths: list[str | None] = [*pictures[:40], str(broken), str(tmp_path / "missing.png"), None, "/etc/passwd"]
    df = daft.from_pydict({"id": list(range(len(paths))), "path": paths})
    access = FileAccess(folders=[Path(pictures[0]).parent, tmp_path])
    rows = answered(df, [lit("Describe"), image(col("path"))], gemma3, files=access)
    assert errors(rows) == [None] * 40 + ["invalid_media", "unavailable_media", "null_prompt", "unavailable_media"]
    assert all(row["value"] and row["prompt_tokens"] > TOKENS for row in rows[:40])
    assert all(row["value"] is None for row in rows[40:])
    assert "below no folder that may be read" in rows[43]["error"]
    assert set(errors(answered(df, image(col("path")), gemma3))) == {"unavailable_media", "null_prompt"}


def test_hostile_places_beside_good_ones(gemma3: str, pictures: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    access = FileAccess(folders=[Path(pictures[0]).parent, tmp_path], private_network=True, max_seconds=1)
    with hostile_server() as server:
        places = [server.url(path) for path in (*SLOW, "round", "busy?wait=100000", "endless-header", "says-too-much")]
        places += [str(tmp_path / "fifo.png"), str(tmp_path / "zero.png"), "/dev/zero", "/proc/self/environ"]
        df = daft.from_pydict({"path": [*places, *pictures[:50]]})
        df = df.with_column("id", daft.functions.monotonically_increasing_id())
        rows = answered(df, [lit("?"), image(col("path"))], gemma3, files=access)
    assert errors(rows) == ["unavailable_media"] * len(places) + [None] * 50
    assert all("took more than 1 second:" in row["error"] for row in rows[: len(SLOW)])


def test_every_way_to_hold_an_image_is_the_same(gemma3: str, pictures: list[str]) -> None:
    paths = pictures[:4]
    df = daft.from_pydict({"id": list(range(4)), "path": paths})
    df = df.with_column("data", col("path").download()).with_column("file", file(col("path")))
    df = df.with_column("pixels", decode_image(col("data")))
    access = FileAccess(folders=[Path(paths[0]).parent])
    by_path = answered(df, [image(col("path")), lit("?")], gemma3, files=access)
    assert errors(by_path) == [None] * 4
    for part in (col("data"), col("pixels"), image(col("pixels")), col("file")):
        rows = answered(df, [part, lit("?")], gemma3, files=access)
        assert [row["text"] for row in rows] == [row["text"] for row in by_path]
        assert [row["prompt_tokens"] for row in rows] == [row["prompt_tokens"] for row in by_path]
    nulls = daft.from_pydict({"id": list(range(4)), "path": [*paths[:2], None, paths[3]]})
    nulls = nulls.with_column("pixels", decode_image(col("path").download()))
    assert errors(answered(nulls, [col("pixels"), lit("?")], gemma3)) == [None, None, "null_prompt", None]


def test_lists_of_images_and_of_other_things(gemma3: str, pictures: list[str]) -> None:
    access = FileAccess(folders=[Path(pictures[0]).parent])
    lists = [pictures[:1], pictures[:3], [], [pictures[0], None]]
    df = daft.from_pydict({"id": list(range(4)), "paths": lists})
    rows = answered(df, [image(col("paths")), col("id"), lit("?")], gemma3, files=access)
    assert errors(rows) == [None, None, None, "null_prompt"]
    one, three, none = (row["prompt_tokens"] for row in rows[:3])
    assert three - one == 2 * (one - none)
    blobs = daft.from_pydict({"id": [0, 1], "data": [b"%PDF-1.7 x", b"PK\x03\x04"]})
    assert errors(answered(blobs, [col("data"), lit("?")], gemma3)) == ["invalid_media"] * 2


def test_ten_questions_on_each_of_100_images(gemma3: str, pictures: list[str]) -> None:
    rows = [(path, f"Question {i}: what is in it?") for i in range(10) for path in pictures]
    df = daft.from_pydict(
        {"id": list(range(1000)), "path": [path for path, _ in rows], "question": [question for _, question in rows]}
    )
    access = FileAccess(folders=[Path(pictures[0]).parent])
    details = answered(df, [image(col("path")), col("question")], gemma3, files=access, batch_size=1000)
    assert errors(details) == [None] * 1000
    # The image's tokens are computed with one row of each image at most; for the nine others they are in the cache.
    computed = Counter(path for (path, _), row in zip(rows, details, strict=True) if row["cached_tokens"] < TOKENS)
    assert max(computed.values()) == 1
    assert len(computed) > 90  # some are there from other tests
    size = max(row["prompt_tokens"] for row in details)
    assert sum(row["prompt_tokens"] - row["cached_tokens"] for row in details) <= 100 * size + 900 * (size - TOKENS)


def test_vllm_dies_among_images(gemma3: str, pictures: list[str]) -> None:
    """It is started again, and rows with media are replayed; those that come later are rendered as before."""
    df = daft.from_pydict({"id": list(range(100)), "photo": pictures})
    parts = [image(col("photo")), lit("What is it?")]
    files = FileAccess(folders=[str(Path(pictures[0]).parent)])
    before = answered(df, parts, gemma3, files=files, max_tokens=8)
    engine = shared_engine(EngineConfig(gemma3, ARGS), check_chat_template=True)
    started = engine.stats()

    def kill() -> None:
        while engine.stats().steps < started.steps + 3:
            time.sleep(0.01)
        for pid in engine.process_ids:
            os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    during = answered(df, parts, gemma3, files=files, max_tokens=8, dedupe=False)
    assert engine.stats().restarts == 1
    after = answered(df, parts, gemma3, files=files, max_tokens=8, dedupe=False)
    for rows in (before, during, after):
        assert errors(rows) == [None] * 100
        assert [row["prompt_tokens"] for row in rows] == [row["prompt_tokens"] for row in before]


def test_a_row_given_up_does_not_take_others_with_it(gemma3: str, pictures: list[str]) -> None:
    """vLLM's front end takes an image for known to its core once it has processed it, whatever became of that row."""
    questions = ["word " * 960, *(f"Question {i}?" for i in range(9))]
    df = daft.from_pydict({"id": list(range(10)), "path": pictures[50:51] * 10, "question": questions})
    files = FileAccess(folders=[Path(pictures[0]).parent])
    rows = answered(df, [image(col("path")), col("question")], gemma3, files=files)
    assert errors(rows) == ["prompt_too_long"] + [None] * 9


def test_conversations_and_system_messages_of_rows(gemma3: str, pictures: list[str]) -> None:
    def user(content: Any) -> dict[str, Any]:
        return {"role": "user", "content": content}

    long = [user("hi"), {"role": "assistant", "content": "yes?"}, user("what is this?")]
    df = daft.from_pydict({"id": [0, 1, 2, 3], "talk": [[user("hi")], long, [], None]})
    rows = answered(df, col("talk"), gemma3)
    assert errors(rows) == [None, None, "empty_prompt", "null_prompt"]
    assert rows[1]["prompt_tokens"] > rows[0]["prompt_tokens"]
    plain = answered(daft.from_pydict({"id": [0], "text": ["hi"]}), col("text"), gemma3)
    assert plain[0]["prompt_tokens"] == rows[0]["prompt_tokens"]

    parts = [{"type": "image_url", "image_url": {"url": pictures[0]}}, {"type": "text", "text": "what is this?"}]
    unknown = [{"type": "video_url", "image_url": {"url": pictures[0]}}]
    df = daft.from_pydict({"id": [0, 1], "talk": [[user(parts)], [user(unknown)]]})
    rows = answered(df, col("talk"), gemma3, files=FileAccess(folders=[Path(pictures[0]).parent]))
    assert errors(rows) == [None, "invalid_prompt"]
    assert rows[0]["prompt_tokens"] > TOKENS

    df = daft.from_pydict({"id": [0, 1], "text": ["hi", "hi"], "system": ["You are a sailor of the seven seas.", None]})
    rows = answered(df, col("text"), gemma3, system_message=col("system"))
    assert rows[0]["prompt_tokens"] > rows[1]["prompt_tokens"] == plain[0]["prompt_tokens"]


def test_turns_go_on_with_what_was_said(gemma3: str, pictures: list[str]) -> None:
    files = FileAccess(folders=[Path(pictures[0]).parent])
    df = daft.from_pydict({"id": list(range(8)), "path": pictures[:8], "q": ["What is this?"] * 8})
    first = [image(col("path")), col("q")]
    options = {"engine_args": ARGS, "gpus": 0, "use_process": False, "max_tokens": 40, "ignore_eos": True}
    data = df.with_column("a", prompt(first, model=gemma3, files=files, **options)).sort("id").to_pydict()
    df = daft.from_pydict({**data, "a": [None if i == 3 else answer for i, answer in enumerate(data["a"])]})
    rows = answered(df, first, gemma3, files=files, turns=[(col("a"), lit("Why?"))])
    assert errors(rows) == [None] * 3 + ["null_prompt"] + [None] * 4
    assert all(row["cached_tokens"] >= TOKENS for row in rows if code_of(row) is None)

    talk = [
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"}]
    ]
    (as_column,) = answered(daft.from_pydict({"id": [0], "talk": talk}), col("talk"), gemma3)
    turned = daft.from_pydict({"id": [0], "q": ["hi"], "a": ["yes?"]})
    (as_turns,) = answered(turned, col("q"), gemma3, turns=[(col("a"), lit("go"))])
    (as_examples,) = answered(turned, lit("go"), gemma3, examples=[("hi", "yes?")])
    for row in (as_turns, as_examples):
        assert (row["text"], row["prompt_tokens"]) == (as_column["text"], as_column["prompt_tokens"])


def test_hostile_values_change_no_other_row(gemma3: str, pictures: list[str]) -> None:
    hostile = hostile_values()
    friendly = [f"Question {i}?" for i in range(20)]
    alone = answered(daft.from_pydict({"id": list(range(20)), "text": friendly}), col("text"), gemma3)
    df = daft.from_pydict({"id": list(range(220)), "text": [*friendly, *hostile]})
    rows = answered(df, col("text"), gemma3)
    assert [row["text"] for row in rows[:20]] == [row["text"] for row in alone]
    assert errors(rows) == [None] * 220
    as_system = answered(df, lit("Hello"), gemma3, system_message=col("text"))
    assert errors(as_system) == [None] * 220


def test_images_in_a_process(gemma3: str, pictures: list[str]) -> None:
    df = daft.from_pydict({"id": list(range(20)), "path": pictures[:20]})
    df = df.with_column("pixels", decode_image(col("path").download()))
    rows = answered(df, [col("pixels"), lit("?")], gemma3, use_process=True, batch_size=8)
    assert errors(rows) == [None] * 20


def test_what_can_not_be_in_a_prompt(gemma3: str, tiny: str, pictures: list[str]) -> None:
    for wrong, message in (
        ("question", "takes a column, not a text"),
        ([], "messages is a column"),
        (["question"], r"Write lit\('question'\) for text, col\('question'\) for a column"),
        (3, "messages is a column"),
    ):
        with pytest.raises(OptionError, match=message):
            prompt(wrong, model=tiny, gpus=0)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="image of the prompt is a column"):
        image("path")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="files is FileAccess"):
        prompt(col("q"), model=tiny, gpus=0, files="/data")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="turns is a list of pairs"):
        prompt(col("q"), model=tiny, gpus=0, turns=[col("a")])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="examples is a list of pairs"):
        prompt(col("q"), model=tiny, gpus=0, examples=["a"])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="can't be written as JSON"):
        prompt(col("q"), model=tiny, gpus=0, examples=[("a", object())])
    with pytest.raises(OptionError, match="examples needs the chat template"):
        prompt(col("q"), model=tiny, gpus=0, examples=[("a", "b")], apply_chat_template=False)
    df = daft.from_pydict({"id": [0], "path": pictures[:1], "struct": [{"a": 1}]})
    with pytest.raises(ModelError, match="takes no images"):
        answered(df, [image(col("path")), lit("?")], tiny, engine_args=TINY_ARGS)
    with pytest.raises(OptionError, match="can't be part of a prompt"):
        answered(df, [col("struct"), lit("?")], gemma3)


def test_the_same_through_daft_s_own_prompt(gemma3: str, pictures: list[str]) -> None:
    """Images of a column, bytes and lists of them, with text between, as Daft hands its rows on."""
    fixed: dict[str, Any] = {"model": gemma3, "engine_args": ARGS, "gpus": 0, "max_tokens": 4}
    contents = [Path(path).read_bytes() for path in pictures[:6]]
    df = daft.from_pydict({"id": list(range(6)), "bytes": [None, *contents[1:]], "n": [1, 2, 3, 4, 5, 6]})
    df = df.with_column("image", decode_image(col("bytes"))).with_column("two", to_list(col("bytes"), col("bytes")))
    for messages in ([col("image"), lit("What?")], [lit("Compare"), col("two"), lit("with"), col("image"), col("n")]):
        ours = [row["value"] for row in answered(df, messages, gemma3, max_tokens=4)]
        theirs = df.select("id", daft_prompt(messages, provider=Provider(**fixed)).alias("a")).to_pydict()
        assert theirs["id"] == list(range(6))
        assert theirs["a"] == ours
        assert [answer is None for answer in ours] == [True] + [False] * 5
