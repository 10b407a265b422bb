"""Whether a guess is worth its place in a step."""

from __future__ import annotations

_FORGET = 0.99
_STEPS = 30
"""Steps after which the measured times count."""
_UNKNOWN = 0.6
"""How probable a guess has to be as long as steps aren't known."""
_LEAST, _MOST = 0.65, 0.97
"""What is asked of a guess at least and at most. A lower bound saves few steps: with SmolLM2-135M, twelve keys and
four sequences 0.1, 0.5 and 0.75 took 196, 199 and 213 steps (1,190 without guesses), and 20, 13 and 5% were wrong."""


class StepTimes:
    """Learns what a step takes: so much for itself, and so much for each of its tokens.

    A step of ``tokens`` takes ``fixed + each * tokens`` seconds, by least squares over the last steps.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.fixed = self.each = 0.0
        self._sums = [0.0] * 5  # of 1, x, x * x, y, x * y

    def add(self, tokens: int, seconds: float) -> None:
        """Count a step."""
        self.steps += 1
        one, x, xx, y, xy = (value * _FORGET for value in self._sums)
        one, x, xx, y, xy = one + 1, x + tokens, xx + tokens * tokens, y + seconds, xy + tokens * seconds
        self._sums = [one, x, xx, y, xy]
        spread = one * xx - x * x
        if spread > 1e-6 * one * xx:
            each = (one * xy - x * y) / spread
            self.each = min(max(each, 0.0), y / x)
            self.fixed = max((y - self.each * x) / one, 0.0)

    def least_right(self, rows: int) -> float:
        """Return how probable a guess has to be.

        A token that is right saves its row a step: the row's part of what a step takes for itself, and the token's own
        time. A guess costs the time of a token, right or wrong.

        Args:
            rows: rows that write a token in each step.
        """
        if self.steps < _STEPS or not self.each + self.fixed:
            return _UNKNOWN
        return min(max(self.each / (self.each + self.fixed / max(rows, 1)), _LEAST), _MOST)
