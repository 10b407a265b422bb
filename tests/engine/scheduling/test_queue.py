"""The prefix queue: its order, its count of the optimum, rows that go ahead, rows that leave."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest

from daft_vllm.engine.requests.prepared import Prepared, pack_tokens
from daft_vllm.engine.scheduling.prefix import computed_tokens, optimal_prompt_tokens, order_key, shared_blocks
from daft_vllm.engine.scheduling.queue import PrefixQueue
from daft_vllm.engine.scheduling.row import Call, Row

BLOCK = 4


def make_row(tokens: list[int], max_tokens: int = 8, call: Call | None = None, media: bytes = b"") -> Row:
    prepared = Prepared(pack_tokens(tokens), SimpleNamespace(max_tokens=max_tokens), False, b"digest", media)
    return Row(call or Call(1), 0, prepared, BLOCK, dedupe=True)


def drain(queue: PrefixQueue) -> list[Row]:
    return [queue.pop() for _ in range(len(queue))]


def cached_run(rows: list[Row]) -> int:
    """Count the tokens that vLLM computes for ``rows`` in this order, with a cache that forgets nothing."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for row in rows:
        tokens = row.token_ids
        blocks = [tuple(tokens[: end + BLOCK]) for end in range(0, len(tokens) - BLOCK + 1, BLOCK)]
        hits = sum(1 for _ in itertools.takewhile(seen.__contains__, blocks))
        total += computed_tokens(len(tokens), hits, BLOCK)
        seen.update(blocks)
    return total


def random_prompts(seed: int, count: int) -> list[list[int]]:
    """Return prompts of only two different tokens, so that many of them share prefixes of many lengths."""
    rng = random.Random(seed)
    return [[rng.randrange(2) for _ in range(rng.randrange(1, 22))] for _ in range(count)]


def test_order_is_by_blocks_then_arrival() -> None:
    prompts = [[2, 0, 0, 0, 9], [1, 0, 0, 0, 7], [1, 0, 0, 0], [1, 0, 0, 0, 3, 3, 3, 3], [70000, 1, 1, 1], [1, 0, 0]]
    queue = PrefixQueue(BLOCK, 8)
    rows = [make_row(prompt) for prompt in prompts]
    queue.push(rows)
    order = [rows.index(row) for row in drain(queue)]
    # First the two prompts with the one block 1,0,0,0, by arrival, then the prompt that continues after this block. The
    # order of different blocks has no meaning.
    start = order.index(1)
    assert order[start : start + 3] == [1, 2, 3]
    assert sorted(order) == list(range(6))


@pytest.mark.parametrize("media", [b"", b"m" * 16])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 23])
def test_a_row_gives_back_the_tokens_it_was_made_of(size: int, media: bytes) -> None:
    tokens = [0, 2**31 - 1, 255, 256, *range(300, 300 + size)][:size]
    row = make_row(tokens, media=media)
    assert row.token_ids == tokens
    assert row.size == size


def test_media_keep_together() -> None:
    a, b = b"a" * 16, b"b" * 16
    rows = [make_row([1, 1, 1, 1], media=m) for m in (a, b, a, b"", b)]
    queue = PrefixQueue(BLOCK, 8)
    queue.push(rows)
    assert [row.media for row in drain(queue)] == [b, b, a, a, b""]
    # For vLLM, the same tokens after other media are other blocks. It always computes the last block.
    assert queue.optimal_tokens == 5 * 4
    assert rows[0].digest != rows[1].digest == rows[4].digest


@pytest.mark.parametrize("seed", range(8))
def test_optimum_is_what_no_order_beats(seed: int) -> None:
    prompts = random_prompts(seed, 6)
    rows = [make_row(prompt) for prompt in prompts]
    best = min(cached_run(list(order)) for order in itertools.permutations(rows))
    assert optimal_prompt_tokens(prompts, BLOCK) == best
    queue = PrefixQueue(BLOCK, 8)
    queue.push(rows)
    swept = drain(queue)
    assert queue.optimal_tokens == best
    assert cached_run(swept) == best


def test_shared_blocks_against_a_plain_count() -> None:
    for seed in range(30):
        first, second = random_prompts(seed, 2)
        keys = [order_key(pack_tokens(p), BLOCK, i) for i, p in enumerate((first, second))]
        plain = 0
        while (plain + 1) * BLOCK <= min(len(first), len(second)) and (
            first[: (plain + 1) * BLOCK] == second[: (plain + 1) * BLOCK]
        ):
            plain += 1
        assert shared_blocks(keys[0], keys[1], BLOCK) == plain


def test_late_rows_join_the_sweep_and_nobody_waits_for_a_second_one() -> None:
    queue = PrefixQueue(BLOCK, 8)
    queue.push([make_row([token] * BLOCK) for token in (10, 20, 30)])
    assert queue.pop().token_ids[0] == 30
    queue.push([make_row([token] * BLOCK) for token in (5, 15, 35)])
    assert [row.token_ids[0] for row in drain(queue)] == [20, 15, 10, 5, 35]
    # A row waits for one sweep at most, however many rows arrive ahead of the sweep.
    waiting = make_row([50] * BLOCK)
    queue.push([waiting])
    order = []
    for token in reversed(range(100)):
        queue.push([make_row([token] * BLOCK)])
        order.append(queue.pop())
    assert waiting in order


def test_a_row_goes_ahead_only_where_it_would_be_the_last() -> None:
    queue = PrefixQueue(BLOCK, max_num_seqs=4)
    short = [make_row([token] * BLOCK, max_tokens=2) for token in reversed(range(40))]
    long = make_row([0] * BLOCK + [1] * BLOCK, max_tokens=10)
    queue.push([*short, long])
    # All waiting rows need (40 * 2 + 10) / 4 = 22.5 steps. When those left need 10 steps or fewer, the long row goes.
    order = drain(queue)
    place = order.index(long)
    left = sum(row.max_tokens for row in order[place:])
    assert left <= 10 * 4 < left + 2
    assert [row for row in order if row is not long] == short
    # It shares a block with a short row. The block is counted once, although the sweep reached the short row later.
    assert queue.optimal_tokens == optimal_prompt_tokens([row.token_ids for row in order], BLOCK)


def test_rows_of_equal_length_are_never_taken_out_of_order() -> None:
    rows = [make_row(prompt, max_tokens=500) for prompt in random_prompts(3, 50)]
    queue = PrefixQueue(BLOCK, 8)
    queue.push(rows)
    assert drain(queue) == sorted(rows, key=lambda row: row.key, reverse=True)


def test_many_late_rows_are_merged_into_the_sweep() -> None:
    first, late = ([make_row(prompt) for prompt in random_prompts(seed, 200)] for seed in (8, 9))
    queue = PrefixQueue(BLOCK, 8)
    queue.push(first)
    order = [queue.pop() for _ in range(100)]
    for row in late:  # one by one, so that runs are merged many times
        queue.push([row])
    order += drain(queue)
    assert sorted(row.key for row in order) == sorted(row.key for row in [*first, *late])
    sweeps = 1 + sum(later.key > earlier.key for earlier, later in itertools.pairwise(order))
    assert sweeps == 2


def test_rows_that_come_and_go_are_never_mistaken_for_each_other() -> None:
    """The queue knows rows by the ``id()`` of their keys. A new key may get the ``id()`` of a row that is gone."""
    rng = random.Random(5)
    queue = PrefixQueue(BLOCK, 2)
    waiting: dict[tuple[int, ...], int] = {}
    number = 0
    for _ in range(400):
        for _ in range(rng.randrange(4)):
            number += 1
            prompt = [rng.randrange(2), 1, 1, 1, number]  # all keys have the same size, so memory is used again
            queue.push([make_row(prompt, max_tokens=rng.choice((2, 2, 2, 40)))])
            waiting[tuple(prompt)] = number
        if rng.random() < 0.3:
            for row in queue.remove(lambda row: row.token_ids[-1] % 3 == 0):
                del waiting[tuple(row.token_ids)]
        while len(queue) > 5:
            del waiting[tuple(queue.pop().token_ids)]
        assert len(queue) == len(waiting)
    for row in drain(queue):
        del waiting[tuple(row.token_ids)]
    assert not waiting


def test_a_removed_row_may_come_back() -> None:
    rows = [make_row([token] * BLOCK) for token in (10, 20, 30)]
    queue = PrefixQueue(BLOCK, 8)
    queue.push(rows)
    assert queue.remove(lambda row: row is rows[1]) == [rows[1]]
    queue.push([rows[1]])
    assert drain(queue) == rows[::-1]


def test_removed_rows_are_gone_and_the_rest_stays() -> None:
    mine, other = Call(1), Call(1)
    rows = [
        make_row(prompt, max_tokens=1 + i % 3, call=(mine, other)[i % 2])
        for i, prompt in enumerate(random_prompts(1, 40))
    ]
    queue = PrefixQueue(BLOCK, 2)
    queue.push(rows)
    before = [queue.pop() for _ in range(7)]
    removed = queue.remove(lambda row: row.call is mine)
    assert {row.call for row in removed} == {mine}
    rest = drain(queue)
    assert {row.call for row in rest} == {other}
    assert len(before) + len(removed) + len(rest) == len(rows)
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.pop()


def test_a_thousand_random_arrivals_lose_nothing() -> None:
    rng = random.Random(5)
    queue = PrefixQueue(BLOCK, 4)
    given: list[Row] = []
    for prompt in random_prompts(6, 1000):
        queue.push([row := make_row(prompt, max_tokens=rng.choice((1, 1, 1, 30)))])
        given.append(row)
        while len(queue) and rng.random() < 0.45:
            given.remove(queue.pop())
    for row in drain(queue):
        given.remove(row)
    assert given == []
