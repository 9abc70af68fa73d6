"""Where a round's time goes, from what its coordinator tells. Pure.

    work     items are computed: from the seal before to the first claim of work
    commit   claims of work and their shards: to RoundClosed
    reduce   means of the buckets: to the seal, after which members apply and the next round works

Units of moments and spans: microseconds of one clock.
"""

from dataclasses import dataclass

_BEGINS = {
    "opened": "work",
    "claim_stored": "commit",
    "round_closed": "reduce",
    "seal_stored": "work",
}
_BEFORE = {"commit": "work", "reduce": "commit"}


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

    A coordinator that restarts does not tell where in its round it is: a phase whose beginning
    nobody has told ends unreported.
    """
    if event not in _BEGINS:
        return now, None
    begins = Phase(_BEGINS[event], step + (event == "seal_stored"), at_us)
    if event == "opened":
        return begins, None
    if now is None or now.step != step:
        return begins, None
    if begins.name == "commit" and now.name != "work":
        return now, None  # not the first claim
    if event != "seal_stored" and now.name != _BEFORE[begins.name]:
        return begins, None
    return begins, Passed(now.name, now.step, now.began_us, at_us - now.began_us)
