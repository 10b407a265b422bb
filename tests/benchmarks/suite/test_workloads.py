"""The workloads: exact token counts, determinism, and nothing shared between seeds."""

from __future__ import annotations

import itertools
from collections import Counter

import jsonschema
import pytest

from benchmarks.suite.suites import COLD, suite
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.workloads import PRESSURE_ROWS_PER_PREFIX, SCHEMA, make_job, workload_names

ROWS = 64
BLOCK = 32
# Workload: prompt tokens of every row, distinct prefixes of so many tokens.
TOKENS = {
    "blog": (512, {256: 8}),
    "instructions": (1088, {1024: 2}),
    "pressure": (576, {512: 16}),
    "nosharing": (256, {BLOCK: 64}),
    "skewed": (192, {128: 4}),
    "nested": (576, {256: 2, 512: 8}),
    "guided": (192, {128: 4}),
    "tiny": (8, {8: 64}),
    "duplicates": (64, {64: 45}),
}


@pytest.fixture(scope="module")
def vocabulary(smollm2: str) -> Vocabulary:
    return Vocabulary.of_model(smollm2)


@pytest.mark.parametrize("workload", TOKENS)
def test_tokens_are_exact_and_prefixes_as_many_as_said(workload: str, vocabulary: Vocabulary) -> None:
    job = make_job(workload, ROWS, "seed", vocabulary)
    tokens = vocabulary.token_ids(job.prompts)
    length, prefixes = TOKENS[workload]
    assert {len(ids) for ids in tokens} == {length}
    for size, distinct in prefixes.items():
        assert len({tuple(ids[:size]) for ids in tokens}) == distinct


def test_every_workload_is_covered() -> None:
    assert set(workload_names()) == {*TOKENS, "table"}


@pytest.mark.parametrize("workload", workload_names())
def test_same_arguments_give_the_same_job(workload: str, vocabulary: Vocabulary) -> None:
    one, two = (make_job(workload, 20, "seed", vocabulary) for _ in range(2))
    assert one == two
    assert one.rows == len(one.prompts) == len(one.limits()) == 20
    if one.table is not None:
        assert one.table.equals(two.table)


@pytest.mark.parametrize("workload", workload_names())
@pytest.mark.parametrize(("rows", "seed"), [(ROWS, "other"), (ROWS - 1, "seed")])
def test_another_seed_or_size_shares_no_block(workload: str, rows: int, seed: str, vocabulary: Vocabulary) -> None:
    def first_blocks(rows: int, seed: str) -> set[tuple[int, ...]]:
        tokens = vocabulary.token_ids(make_job(workload, rows, seed, vocabulary).prompts)
        return {tuple(ids[:BLOCK]) for ids in tokens}

    assert not first_blocks(ROWS, "seed") & first_blocks(rows, seed)


def test_rows_are_shuffled(vocabulary: Vocabulary) -> None:
    job = make_job("instructions", ROWS, "seed", vocabulary)
    prefixes = [prompt[:100] for prompt in job.prompts]
    assert sum(a != b for a, b in itertools.pairwise(prefixes)) > 8


def test_duplicates_are_three_rows_in_ten(vocabulary: Vocabulary) -> None:
    job = make_job("duplicates", 100, "seed", vocabulary)
    assert sum(count - 1 for count in Counter(job.prompts).values()) == 30


def test_one_row_in_sixteen_writes_32_times_more(vocabulary: Vocabulary) -> None:
    job = make_job("skewed", ROWS, "seed", vocabulary)
    assert Counter(job.limits()) == {8: 60, 256: 4}


def test_the_schema_is_one_and_accepts_what_it_should() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate({"name": "basalt", "kind": "mineral", "score": 3, "flag": False}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "basalt", "kind": "mineral", "score": 10, "flag": False}, SCHEMA)


def test_the_table_renders_to_the_prompts_with_the_varying_field_first(vocabulary: Vocabulary) -> None:
    job = make_job("table", ROWS, "seed", vocabulary)
    assert job.table is not None
    assert job.template is not None
    assert job.table.num_rows == ROWS
    assert list(job.prompts) == [job.template.format(**row) for row in job.table.to_pylist()]
    assert len(set(job.table.column("description").to_pylist())) < ROWS / 3
    # In the template's order nothing but the header, shorter than a block, is shared by two rows of a package.
    heads = {tuple(ids[: 2 * BLOCK]) for ids in vocabulary.token_ids(job.prompts)}
    assert len(heads) > 0.9 * ROWS


def test_too_large_a_table_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(ValueError, match="the installed packages give"):
        make_job("table", 10_000_000, "seed", vocabulary)


def test_pressure_gets_a_cache_of_its_own() -> None:
    cpu = suite("cpu")
    rows = 1024
    args = cpu.engine_args_for("pressure", rows)
    per_token = 30 * 2 * 3 * 64 * (4 if cpu.engine_args.get("dtype") == "float32" else 2)
    assert cpu.kv_bytes_per_token() == per_token
    assert args["kv_cache_memory_bytes"] == rows // PRESSURE_ROWS_PER_PREFIX * 512 // 4 * per_token
    assert args["max_model_len"] == 1024
    smallest = cpu.engine_args_for("pressure", 4)
    assert smallest["kv_cache_memory_bytes"] >= 1024 * per_token
    assert cpu.engine_args_for("blog", rows) == dict(cpu.engine_args)


def test_every_suite_has_two_sizes_of_every_workload() -> None:
    cpu = suite("cpu")
    assert set(cpu.rows) == {*workload_names(), COLD}
    assert all(small < large for small, large in (cpu.rows[name] for name in workload_names()))
    assert set(suite("l4").rows) == set(suite("h100").rows) == set(cpu.rows)
    assert suite("l4", "some/model").model == "some/model"
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        assert suite("cpu", dtype=dtype).kv_bytes_per_token() == 30 * 2 * 3 * 64 * size
