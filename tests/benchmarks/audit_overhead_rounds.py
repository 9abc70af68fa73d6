"""What checking costs, from what turns with and without it have used. Pure.

The turns of one round follow each other, so a busy neighbour slows all of them: each is compared
with the turn without checking of its own round, and figures over rounds are medians with the least
and the most. Few peer-steps are drawn in one turn at a low rate; what all rounds come to together
stands beside. Costs are in per cent of the same without checking, compute per counted unit, wall
time and traffic per step; `beyond` is the compute that is not the replays' own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from tests.benchmarks.measuring import spread

DIGITS = 2


@dataclass(frozen=True)
class Turn:
    """What one turn of one job used: seconds of wall time and of CPU, bytes."""

    steps: int
    units: int  # sealed, each stage counted
    timed_steps: int  # all but the first, which begins while everybody wakes up
    timed_seconds: float  # from the seal of the first step to that of the last
    all_seconds: float  # from its beginning to the end of its last update or audit
    peer_cpu: float
    other_cpu: float  # of coordinator and trainer
    replay_cpu: float  # part of `peer_cpu`: what replays took of the threads that compute
    pass_cpu: float  # part of that: the passes of their units, projections included
    replayed_units: int
    sent_bytes: int


@dataclass(frozen=True)
class Cost:
    """A turn beside one without checking, in per cent of that."""

    wall: float  # from seal to seal
    wall_with_audits: float  # all of it, audits that lag behind included
    compute: float  # CPU of the peers
    replays: float  # of that: replays, in the threads that compute
    passes: float  # of that: units forward and backward, with projections
    beyond: float  # compute less replays
    others: float  # CPU of coordinator and trainer
    traffic: float
    replayed: float  # units that were replayed, of those that counted


def cost(turn: Turn, plain: Turn) -> Cost:
    """What `turn` cost more than `plain`, which nobody checked."""
    compute = _more(turn.peer_cpu / turn.units, plain.peer_cpu / plain.units)
    replays = _part(turn.replay_cpu, turn, plain)
    return Cost(
        wall=_more(_seconds(turn), _seconds(plain)),
        wall_with_audits=_more(turn.all_seconds / turn.steps, plain.all_seconds / plain.steps),
        compute=compute,
        replays=replays,
        passes=_part(turn.pass_cpu, turn, plain),
        beyond=compute - replays,
        others=_more(turn.other_cpu / turn.steps, plain.other_cpu / plain.steps),
        traffic=_more(turn.sent_bytes / turn.steps, plain.sent_bytes / plain.steps),
        replayed=100 * turn.replayed_units / turn.units,
    )


def _seconds(turn: Turn) -> float:
    return turn.timed_seconds / turn.timed_steps


def _part(seconds: float, turn: Turn, plain: Turn) -> float:
    """CPU seconds of `turn` a unit, in per cent of what peers use without checking."""
    return 100 * (seconds / turn.units) / (plain.peer_cpu / plain.units)


def _more(checked: float, plain: float) -> float:
    return 100 * (checked / plain - 1)


def together(turns: Sequence[Turn]) -> Turn:
    """All turns as one."""
    return Turn(**{each.name: sum(getattr(turn, each.name) for turn in turns) for each in _FIELDS})


_FIELDS = fields(Turn)

Round = Mapping[str, Turn]
"""By setting."""


def costs(rounds: Sequence[Round], setting: str, plain: str) -> dict[str, dict[str, float]]:
    """By kind of cost: over the rounds median, least and most, and of all rounds together."""
    single = [asdict(cost(each[setting], each[plain])) for each in rounds]
    whole = asdict(
        cost(together([each[setting] for each in rounds]), together([r[plain] for r in rounds]))
    )
    return {
        name: spread([each[name] for each in single], DIGITS) | {"together": round(value, DIGITS)}
        for name, value in whole.items()
    }


def used(rounds: Sequence[Round], setting: str) -> dict[str, float]:
    """What the turns of a setting used, all rounds together: seconds and MB of one step."""
    turn = together([each[setting] for each in rounds])
    return {
        "wall, s": round(_seconds(turn), 3),
        "peers, CPU s": round(turn.peer_cpu / turn.steps, 3),
        "replays, CPU s": round(turn.replay_cpu / turn.steps, 3),
        "coordinator and trainer, CPU s": round(turn.other_cpu / turn.steps, 3),
        "sent, MB": round(turn.sent_bytes / turn.steps / 1e6, 2),
    }
