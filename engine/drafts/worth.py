"""Whether a guess is worth its place in a step."""

from __future__ import annotations

import numpy as np

_FORGET = 0.995
_STEPS = 30
"""Steps after which the measured times count."""
_KINDS = 5.0
"""Steps with guesses, and without, that have to be known before their difference is."""
_SOLVE = 8
"""The times are worked out anew after so many steps."""
_UNKNOWN = 0.6
"""How probable a guess has to be as long as steps aren't known."""
_LEAST, _MOST = 0.65, 0.97
"""What is asked of a guess at least and at most. A lower bound saves few steps: with SmolLM2-135M, twelve keys and
four sequences 0.1, 0.5 and 0.75 took 196, 199 and 213 steps (1,190 without guesses), and 20, 13 and 5% were wrong."""


class StepTimes:
    """Learns what a step takes, by least squares over the last steps.

    Attributes:
        fixed: seconds of a step, whatever it computes.
        prompt: seconds for each token of a prompt.
        each: seconds for each token of an answer, guessed or not: it has logits.
        verify: seconds more if a step has guesses at all: vLLM samples in another way.
    """

    def __init__(self) -> None:
        self.fixed = self.prompt = self.each = self.verify = 0.0
        self._steps = 0
        self._products = np.zeros((4, 4))
        self._sums = np.zeros(4)

    def add(self, prompt: int, answers: int, seconds: float, *, guessed: bool) -> None:
        """Count a step.

        Args:
            prompt: its tokens of prompts.
            answers: its tokens of answers, with guesses.
            seconds: what it took.
            guessed: whether it had guesses.
        """
        self._steps += 1
        values = np.array([1.0, prompt, answers, guessed])
        self._products = _FORGET * self._products + np.outer(values, values)
        self._sums = _FORGET * self._sums + seconds * values
        if self._steps >= _STEPS and self._steps % _SOLVE == 0:
            self._solve()

    def _solve(self) -> None:
        """Work out the times. Those that can't be told apart, or would be below nothing, are left out."""
        steps, guessed = self._products[0, 0], self._products[3, 3]
        names = [0, 1, 2] + ([3] if _KINDS <= guessed <= steps - _KINDS else [])
        while True:
            found = np.zeros(4)
            products = self._products[np.ix_(names, names)]
            found[names] = np.linalg.lstsq(products, self._sums[names], rcond=1e-9)[0]
            below = [name for name in names if found[name] < 0]
            if not below:
                break
            names = [name for name in names if name not in below]
        self.fixed, self.prompt, self.each, self.verify = map(float, found)

    def gain(self, right: float, rows: int) -> float:
        """Return the seconds that a guess is expected to save.

        A token that is right saves its row a step: the row's part of what a step takes for itself, and the token's own
        time. A guess costs the time of a token, right or wrong.

        Args:
            right: how probable it is that it is right, and all before it.
            rows: rows that write a token in each step.
        """
        return right * (self.fixed / max(rows, 1) + self.each) - self.each

    def least_right(self, rows: int) -> float:
        """Return how probable a guess has to be.

        Args:
            rows: rows that write a token in each step.
        """
        if not self.each + self.fixed:
            return _UNKNOWN
        return min(max(self.each / (self.each + self.fixed / max(rows, 1)), _LEAST), _MOST)
