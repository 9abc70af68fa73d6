"""How long to wait before a call that failed is tried again. Units: seconds."""

import random


class Backoff:
    """Twice as long each time, up to a bound; each a random half of it shorter.

    So those that one fault has struck do not all come back at one moment.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._span = first

    def begin(self) -> None:
        """It went well, or is about something else: the next pause is the first one."""
        self._span = self._first

    def next(self) -> float:
        """The pause that comes now."""
        span, self._span = self._span, min(2 * self._span, self._longest)
        return span * random.uniform(0.5, 1.0)
