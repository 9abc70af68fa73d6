"""Faults in an agent's log: told once, then rarely while they last, and once more when over.

What is tried each second fails each second, in words that may differ a little; so a fault has a
name, and the newest words are told again after one, five, fifteen and then every sixty minutes.
Two tasks that fail for one reason tell it once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

REMINDERS = tuple(timedelta(minutes=each) for each in (1, 5, 15, 60))
"""Time between two lines about one fault that lasts; the last one repeats."""

Say = Callable[[str], None]


@dataclass
class _Fault:
    line: str
    since: float
    told: int  # times
    next_at: float


class Faults:
    """What goes wrong now, by name."""

    def __init__(self, say: Say, monotonic: Callable[[], float]) -> None:
        self._say, self._monotonic = say, monotonic
        self._open: dict[str, _Fault] = {}

    def tell(self, name: str, line: str) -> None:
        """Something goes wrong, still or again."""
        now = self._monotonic()
        if (fault := self._open.get(name)) is None:
            is_known = any(each.line == line for each in self._open.values())
            pause = REMINDERS[0].total_seconds()
            self._open[name] = _Fault(line, now, 0 if is_known else 1, now + pause)
            if not is_known:
                self._say(line)
            return
        fault.line = line
        if fault.told and now >= fault.next_at:
            self._say(f"{line} (for {_span(now - fault.since)} now)")
            pause = REMINDERS[min(fault.told, len(REMINDERS) - 1)].total_seconds()
            fault.told, fault.next_at = fault.told + 1, now + pause

    def over(self, name: str) -> None:
        """It goes well; tells so if it did not, and its owner was told."""
        fault = self._open.pop(name, None)
        if fault is not None and fault.told:
            self._say(f"over after {_span(self._monotonic() - fault.since)}: {fault.line}")


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
