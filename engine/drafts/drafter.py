"""Guesses the next tokens of rows, from what rows wrote before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from daft_vllm.engine.drafts.grammar import Forced
from daft_vllm.engine.drafts.memory import Guess
from daft_vllm.engine.drafts.row import Group, Prompt, State, guesses, learn
from daft_vllm.engine.drafts.worth import StepTimes

_MOST_GROUPS = 16
_WITHOUT = 32
"""One step in so many has no guesses, so that it is known what a step takes without."""


class _Ahead(NamedTuple):
    guess: Guess
    forced: str | bytes  # after the token


class Row:
    """A row whose answer is written.

    Args:
        group: rows with the same constraint.
        prompt: its prompt.
    """

    def __init__(self, group: Group, prompt: Prompt) -> None:
        self.group = group
        self.prompt = prompt
        self.seen = 0
        """Tokens of the answer that are known here."""
        self.state = State()
        self.ahead: list[_Ahead] = []
        """The guesses that were sent."""
        self.is_drafted = True
        self.is_followed = group.is_followed()


class Writing(NamedTuple):
    """A row that is to get guesses.

    Attributes:
        row: it.
        grammar: at the end of what is written. It is there again afterwards.
        most: the most guesses.
    """

    row: Row
    grammar: Forced
    most: int


class Drafter:
    """Guesses tokens.

    Attributes:
        sent: how many guesses were sent, by source.
        right: how many of them were right.
        times: what steps take.
    """

    def __init__(self, plain: Callable[[int], int]) -> None:
        self.times = StepTimes()
        self.sent: dict[str, int] = {}
        self.right: dict[str, int] = {}
        self._turns = 0
        self._plain = plain
        self._groups: OrderedDict[str, Group] = OrderedDict()

    def new_row(self, constraint: str, prompt: Sequence[int]) -> Row:
        """Return a row whose answer begins.

        Args:
            constraint: rows with the same one are expected to write alike.
            prompt: its tokens.
        """
        group = self._groups.setdefault(constraint, Group())
        self._groups.move_to_end(constraint)
        if len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)
        return Row(group, Prompt(prompt, self._plain))

    def observe(self, row: Row, tokens: Sequence[int], grammar: Forced) -> None:
        """Learn from the tokens that were written.

        Args:
            row: the row.
            tokens: the new ones.
            grammar: after them.
        """
        if not row.is_followed:
            row.seen += len(tokens)
            return
        if not row.seen:
            if row.group.first is None:
                row.group.first = grammar.text_before(tokens)
            row.state.forced = row.state.field = row.group.first
        ahead, forced, right = row.ahead, grammar.text(), 0
        for one, token in zip(ahead, tokens, strict=False):
            if one.guess.token != token:
                break
            self.right[one.guess.source] = self.right.get(one.guess.source, 0) + 1
            right += 1
        row.group.count(len(tokens), right)
        for i, token in enumerate(tokens):
            learn(row.state, token, row.prompt, row.group)
            known = i < len(ahead) and ahead[i].guess.token == token and i + 1 < len(tokens)
            row.state.advance(token, ahead[i].forced if known else forced, row.prompt)
        row.seen += len(tokens)
        row.ahead = []

    def draft(self, rows: Sequence[Writing], number: int) -> list[list[int]]:
        """Return guesses of the next tokens of each row. None are made if all together save no time.

        Args:
            rows: the rows.
            number: rows that write a token in each step.
        """
        least, gain = self.times.least_right(number), 0.0
        for row, grammar, most in rows:
            if row.is_followed:
                gain += self._guess(row, grammar, most, least, number)
        self._turns += 1
        if gain < self.times.verify or self._turns % _WITHOUT == 0:
            for row, _, _ in rows:
                row.ahead = []
        for row, _, _ in rows:
            for one in row.ahead:
                self.sent[one.guess.source] = self.sent.get(one.guess.source, 0) + 1
        return [[one.guess.token for one in row.ahead] for row, _, _ in rows]

    def _guess(self, row: Row, grammar: Forced, most: int, least: float, number: int) -> float:
        """Make a row's guesses, and return the seconds that they are expected to save."""
        state, right, gain, row.ahead = row.state.copy(), 1.0, 0.0, []
        while len(row.ahead) < most:
            guess = max(guesses(state, row.prompt, row.group), key=lambda one: one.right, default=None)
            if guess is None or right * guess.right < least or not grammar.accept(guess.token):
                break
            right *= guess.right
            gain += self.times.gain(right, number)
            row.ahead.append(_Ahead(guess, grammar.text()))
            state.advance(guess.token, row.ahead[-1].forced, row.prompt)
        grammar.rollback(len(row.ahead))
        return gain
