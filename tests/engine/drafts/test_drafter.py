"""Guesses of tokens, without a model: a grammar of letters, and rows that are written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from daft_vllm.engine.drafts.drafter import Drafter, Row, Writing
from daft_vllm.engine.drafts.grammar import NOTHING, Forced
from daft_vllm.engine.drafts.memory import Memory
from daft_vllm.engine.drafts.worth import StepTimes

KEYS = ("<name>", "<age>", "<end>")
PIECES = {200: "<na", 201: "me>", 202: "<age", 203: "<nam", 204: "e>a"}


class Letters:
    """A grammar: ``<name>x<age>y<end>`` with one or more letters between keys. A token is a letter or a piece."""

    def __init__(self) -> None:
        self.texts: list[str] = [""]

    def text_of(self, token: int) -> str:
        return PIECES.get(token) or chr(token)

    def text(self) -> str:
        written = self.texts[-1]
        rest, forced = written, ""
        for key in KEYS:
            if rest.startswith(key):
                rest = rest[len(key) :].lstrip("abcdefghijklmnopqrstuvwxyz")
                forced = ""
            else:
                forced = key[len(rest) :] if key.startswith(rest) and (rest or not written or forced) else ""
                break
        return forced

    def text_before(self, tokens: Sequence[int]) -> str:
        self.rollback(len(tokens))
        text = self.text()
        for token in tokens:
            self.accept(token)
        return text

    def accept(self, token: int) -> bool:
        text = self.text_of(token)
        forced = self.text()
        if forced and not forced.startswith(text[: len(forced)]):
            return False
        self.texts.append(self.texts[-1] + text)
        return True

    def rollback(self, tokens: int) -> None:
        if tokens:
            del self.texts[-tokens:]


def guesses_of(drafter: Drafter, row: Row, grammar: Forced) -> list[int]:
    return drafter.draft([Writing(row, grammar, 16)], 1)[0]


def write(drafter: Drafter, tokens: Sequence[int], prompt: Sequence[int] = ()) -> int:
    """Write a row's tokens as vLLM would: a step verifies the guesses. Return the steps."""
    grammar = Letters()
    row: Row = drafter.new_row("form", prompt)
    steps, done = 1, 1
    grammar.accept(tokens[0])
    drafter.observe(row, tokens[:1], grammar)
    while done < len(tokens):
        before = list(grammar.texts)
        guesses = guesses_of(drafter, row, grammar)
        assert grammar.texts == before, "the grammar is where it was"
        new = 0
        while new < len(guesses) and done + new < len(tokens) and guesses[new] == tokens[done + new]:
            new += 1
        new = min(new + 1, len(tokens) - done)
        for token in tokens[done : done + new]:
            assert grammar.accept(token)
        drafter.observe(row, tokens[done : done + new], grammar)
        done += new
        steps += 1
    return steps


def plain(token: int) -> int:
    return token


def test_what_is_forced_is_guessed_in_the_tokens_in_which_it_was_written() -> None:
    drafter = Drafter(plain)
    row = [200, 201, ord("a"), *map(ord, "<age>b<end>")]
    assert write(drafter, row) == len(row), "nothing is known yet"
    steps = [write(drafter, row) for _ in range(8)]
    assert steps[-1] <= 4
    assert drafter.right["forced"] >= 0.9 * drafter.sent["forced"]


def test_values_of_a_field_are_guessed_if_they_are_nearly_always_the_same() -> None:
    drafter = Drafter(plain)
    same = [200, 201, *map(ord, "rather<age>b<end>")]
    for _ in range(30):
        write(drafter, same)
    assert write(drafter, same) <= 3
    assert drafter.right["field"] > 0


def test_wrong_guesses_are_not_repeated() -> None:
    drafter = Drafter(plain)
    letters = "abcdefghijklmnopqrstuvwxyz"
    for i in range(200):
        value = "".join(letters[(i * 7 + j * (i % 5 + 1)) % 26] for j in range(6))
        write(drafter, [200, 201, *map(ord, f"{value}<age>b<end>")])
    assert sum(drafter.right.values()) >= 0.85 * sum(drafter.sent.values()), (drafter.sent, drafter.right)


def test_what_is_copied_from_the_prompt_is_guessed() -> None:
    drafter = Drafter(plain)
    names = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}qwertyuiop"[: 8 + i % 4] for i in range(60)]
    steps = [
        write(drafter, [200, 201, *map(ord, f"{name}<age>b<end>")], prompt=list(map(ord, f"my name is {name}.")))
        for name in names
    ]
    assert drafter.right["prompt"] >= 0.7 * drafter.sent["prompt"] > 0
    assert sum(steps[40:]) / 20 < 0.6 * (8 + 13)


def test_a_forbidden_guess_is_not_sent() -> None:
    drafter = Drafter(plain)
    row = [200, 201, *map(ord, "ab<age>b<end>")]
    for _ in range(5):
        write(drafter, row)

    class Strict(Letters):
        def accept(self, token: int) -> bool:
            return token != ord("g") and super().accept(token)

    other, grammar = drafter.new_row("form", ()), Strict()
    for i, token in enumerate(row[:4]):
        assert grammar.accept(token)
        drafter.observe(other, [token], grammar)
        assert ord("g") not in guesses_of(drafter, other, grammar), i
    assert grammar.texts[-1] == "<name>ab"


def test_without_a_grammar_repeated_text_is_guessed_and_other_text_is_not() -> None:
    drafter = Drafter(plain)

    def free(tokens: Sequence[int]) -> tuple[int, int]:
        row, done, steps = drafter.new_row("", ()), 0, 0
        while done < len(tokens):
            guesses = guesses_of(drafter, row, NOTHING) if done else []
            new = 0
            while new < len(guesses) and done + new < len(tokens) and guesses[new] == tokens[done + new]:
                new += 1
            new = min(new + 1, len(tokens) - done)
            drafter.observe(row, tokens[done : done + new], NOTHING)
            done, steps = done + new, steps + 1
        return steps, len(tokens)

    for i in range(40):
        free([(i * 7919 + j * j * 31 + i * j) % 5000 for j in range(40)])
    assert sum(drafter.sent.values()) < 0.02 * 1600
    for _ in range(10):
        steps, tokens = free(list(range(100, 140)))
    assert steps < 0.3 * tokens


def test_a_memory_forgets_what_did_not_come_for_long() -> None:
    memory = Memory(most=10)
    for i in range(1000):
        memory.of(("often",)).add(1)
        memory.of(("once", i)).add(2)
        assert len(memory) <= 20
    often = memory.get(("often",))
    assert often is not None
    assert often.total == 1000
    assert memory.get(("once", 0)) is None


def test_the_more_rows_share_a_step_the_surer_a_guess_has_to_be() -> None:
    times = StepTimes()
    for i in range(300):
        prompt, answers, guessed = 7 * i % 50, 4 + i % 60, i % 3 == 0
        times.add(prompt, answers, 0.030 + 0.001 * prompt + 0.002 * answers + 0.004 * guessed, guessed=guessed)
    assert times.fixed == pytest.approx(0.030, rel=0.01)
    assert times.prompt == pytest.approx(0.001, rel=0.01)
    assert times.each == pytest.approx(0.002, rel=0.01)
    assert times.verify == pytest.approx(0.004, rel=0.01)
    least = [times.least_right(rows) for rows in (1, 4, 16, 64, 256)]
    assert least == sorted(least)
    assert least[-1] > 0.9
    assert times.gain(1.0, 4) == pytest.approx(0.0075, rel=0.01)
    assert times.gain(0.5, 256) < 0


def test_steps_that_are_all_alike_say_little() -> None:
    times = StepTimes()
    for _ in range(100):
        times.add(0, 8, 0.05, guessed=True)
    assert 0 < times.least_right(8) <= 1
    assert times.verify == 0


def test_guesses_that_save_less_than_verifying_costs_are_not_sent() -> None:
    drafter = Drafter(plain)
    same = [200, 201, *map(ord, "rather<age>b<end>")]
    for _ in range(5):
        write(drafter, same)
    drafter.times.fixed, drafter.times.each, drafter.times.verify = 0.1, 0.001, 1e9
    sent = sum(drafter.sent.values())
    assert write(drafter, same) == len(same)
    assert sum(drafter.sent.values()) == sent


def test_few_rows_are_followed_where_guesses_bring_nothing() -> None:
    drafter = Drafter(plain)
    followed = []
    for i in range(400):
        row = drafter.new_row("", ())
        followed.append(row.is_followed)
        for j in range(30):
            drafter.observe(row, [(i * 7919 + j * j * 31 + i * j) % 50_000], NOTHING)
            guesses_of(drafter, row, NOTHING)
    assert all(followed[:100])
    assert sum(followed[200:]) == 25, "one in 8"
    for _ in range(1500):  # now all rows write the same
        row, done = drafter.new_row("", ()), 0
        while done < 30:
            new = max(1, len(guesses_of(drafter, row, NOTHING)) if done else 1)
            drafter.observe(row, list(range(done, done + new)), NOTHING)
            done += new
    assert all(drafter.new_row("", ()).is_followed for _ in range(8)), "guesses are worth it again"
