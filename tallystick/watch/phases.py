"""Where a step's time goes, from what its coordinator tells. Pure.

    work     units go through the stages: from the seal before to the first StepClose
    commit   GradCommits and their parts: to the AverageSet
    sum      means of the chunks: to the seal, after which members apply and the next step works

Units of moments and spans: microseconds of one clock.
"""

from dataclasses import dataclass

_BEGINS = {
    "opened": "work",
    "step_closed": "commit",
    "average_set_stored": "sum",
    "seal_stored": "work",
}
_BEFORE = {"commit": "work", "sum": "commit"}


@dataclass(frozen=True)
class Phase:
    """A phase that goes on since `began_us`."""

    name: str
    step: int
    began_us: int


@dataclass(frozen=True)
class Passed:
    """A phase that is over."""

    name: str
    step: int
    began_us: int
    took_us: int


def next_phase(
    now: Phase | None, event: str, step: int, at_us: int
) -> tuple[Phase | None, Passed | None]:
    """The phase after an event of the coordinator, and the one that it ended, if it did.

    A coordinator that restarts does not tell where in its step it is: a phase whose beginning
    nobody has told ends unreported.
    """
    if event not in _BEGINS:
        return now, None
    begins = Phase(_BEGINS[event], step + (event == "seal_stored"), at_us)
    if event == "opened":
        return begins, None
    if now is None or now.step != step:
        return begins, None
    if now.name == begins.name == "commit":
        return now, None  # a revision of the StepClose
    if event != "seal_stored" and now.name != _BEFORE[begins.name]:
        return begins, None
    return begins, Passed(now.name, now.step, now.began_us, at_us - now.began_us)
