"""Invariants of the step machine over random lives of a job."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import ChunkIndex, PeerId, StepNumber, UnitId
from contracts.terms.messages import Notice, StepClose
from contracts.terms.moments import UnixMillis
from tests.unit.training.swarm.factories import (
    STAGE,
    A,
    B,
    C,
    averaged_chunk,
    copy,
    grad_commit,
    joining,
    terms,
)
from training.swarm import duties, journaled, step
from training.swarm.events import (
    BuildSeal,
    ChunkAveraged,
    ChunksHeld,
    Effect,
    Event,
    GoOnAsked,
    GradCommitted,
    HoldAsked,
    LinkBroken,
    MeansKept,
    MeansWithheld,
    PartsDenied,
    PartsHeld,
    PeerJoined,
    PeerLeaving,
    PeerLost,
    PeerReturned,
    Resumed,
    SealApplied,
    SealStored,
    SendAverageSet,
    SendNotice,
    SendStepClose,
    StopAsked,
    Ticked,
    UnitsDone,
    UnitsLacked,
)
from training.swarm.securing import lapses_at
from training.swarm.state import Averaging, Closed, Committed, SwarmState

PEERS, UNITS, STEPS = (A, B, C), 4, 3
TERMS = terms(peers=2, units=UNITS, steps=STEPS, chunks=2)

KINDS = (
    "join", "work", "work", "work", "work", "lack", "commit", "commit", "commit", "hold", "hold",
    "average", "average", "apply", "apply", "lose", "return", "return", "tick", "resume", "stop",
    "deny", "break", "leave", "have", "have", "have",
)  # fmt: skip
SPANS = (0, 0, 0, 1, 300, 1000, 4000, 11_000)
NUM_EVENTS = 120

seeds = st.integers(0, 2**32)
"""A life is named by a seed: lists that hypothesis draws are too short to reach a third step."""


@dataclass(frozen=True)
class Moment:
    """One event of a life, what it led to, and what it asked for."""

    event: Event
    state: SwarmState
    effects: tuple[Effect, ...]


def live(seed: int) -> list[Moment]:
    """A life of a job: random wishes, made into events that may fit; seals are stored at once."""
    chance = Random(seed)
    state, now = SwarmState(TERMS), 1000
    moments: list[Moment] = []

    def tell(event: Event) -> None:
        nonlocal state
        state, effects = step.advance(state, event)
        moments.append(Moment(event, state, effects))
        for effect in effects:
            if isinstance(effect, BuildSeal):
                tell(SealStored(effect.step, effect.last, event.at))

    for _ in range(NUM_EVENTS):
        now += chance.choice(SPANS)
        kind, peer = chance.choice(KINDS), chance.choice(PEERS)
        event = event_of(state, kind, peer, chance.getrandbits(UNITS + 1), UnixMillis(now))
        if event is not None:
            tell(Ticked(event.at))  # so that what follows is the event's doing, not the hour's
            tell(event)
    return moments


def event_of(
    state: SwarmState, kind: str, peer: PeerId, number: int, at: UnixMillis
) -> Event | None:
    """An event of this kind; `number` chooses units, chunks or an older step."""
    units = tuple(UnitId(unit) for unit in range(UNITS + 1) if number >> unit & 1)
    places = tuple((STAGE, unit) for unit in units)
    match kind:
        case "join":
            return joining(peer, applied=state.step - 1, at=at)
        case "lose":
            return PeerLost(peer, at)
        case "return":
            return PeerReturned(peer, "", StepNumber(max(0, state.step - 1 - number % 2)), at)
        case "work":
            attempt = number % 2
            done = tuple(copy(peer, 0, unit, attempt=attempt) for unit in units)
            return UnitsDone(state.step, done, at)
        case "lack":
            return UnitsLacked(state.step, peer, places, at)
        case "commit" if isinstance(state.phase, Closed):
            return commit_of(state.phase, peer, number, at)
        case "hold" if isinstance(state.phase, Committed):
            commits = [commit.digest() for commit, _ in state.phase.draft.commits]
            parts = tuple((name, ChunkIndex(chunk)) for name in commits for chunk in range(2))
            return PartsHeld(state.step, peer, parts, at)
        case "average" if isinstance(state.phase, Averaging):
            chunk = averaged_chunk(peer, state.phase.average, number % 3)
            return ChunkAveraged(chunk, at)
        case "have" if isinstance(state.phase, Averaging):
            names = tuple(name for name in TERMS.chunks if number >> name[1] & 1)
            return ChunksHeld(state.step, peer, names, at)
        case "apply":
            return SealApplied(peer, StepNumber(state.step - 1), at)
        case "tick":
            return Ticked(at)
        case "deny" if number % 4 == 0:
            return PartsDenied(state.step, peer, at)
        case "deny" if number % 4 == 1:
            return MeansKept(state.step, TERMS.chunks[:2], at)
        case "deny" if number % 4 == 2:
            return MeansWithheld(state.step, peer, TERMS.chunks[:1], at)
        case "break" if number % 8 == 0:
            return LinkBroken(state.step, peer, at)
        case "leave" if number % 4 == 0:
            return PeerLeaving(peer, at)
        case "resume" if number == 0:
            return Resumed(at)
        case "stop" if number == 1:
            return StopAsked(at)
        case "stop" if number in (2, 3):
            return HoldAsked(at)
        case "stop" if number >= 2**UNITS:
            return GoOnAsked(at)
    return None


def commit_of(phase: Closed, peer: PeerId, number: int, at: UnixMillis) -> GradCommitted | None:
    """What an honest peer would commit to under the newest, or sometimes the first, StepClose."""
    close = phase.draft.closes[0 if number % 5 == 0 else -1]
    own = phase.draft.committed(STAGE, peer)
    units = tuple(unit for unit in step.assigned_units(close, STAGE, peer) if unit not in own)
    rounds = sum(commit.peer == peer for commit, _ in phase.draft.commits)
    if not units:
        return None
    return GradCommitted(grad_commit(peer, close, units, round=rounds), units, at)


def check_closes(moments: list[Moment]) -> None:
    """Every unit once per StepClose; revisions are numbered and add none."""
    closes = [e.message for m in moments for e in m.effects if isinstance(e, SendStepClose)]
    for close in closes:
        units = [unit for each in close.assignments for unit in each.units]
        assert sorted(units) == list(range(UNITS))
        assert all(list(each.units) == sorted(each.units) for each in close.assignments)
    by_step: dict[StepNumber, list[StepClose]] = {}
    for close in closes:
        by_step.setdefault(close.step, []).append(close)
    for own in by_step.values():
        assert [close.revision for close in own] == list(range(len(own)))


def check_averages(moments: list[Moment]) -> None:
    """One AverageSet a step; with an update its members' units are those of the last StepClose."""
    closes: dict[StepNumber, StepClose] = {}
    units_of: dict[bytes, tuple[PeerId, tuple[UnitId, ...]]] = {}
    averaged: set[StepNumber] = set()
    for moment in moments:
        if isinstance(moment.event, GradCommitted):
            commit = moment.event.commit
            units_of[commit.digest()] = (commit.peer, moment.event.units)
        for effect in moment.effects:
            if isinstance(effect, SendStepClose):
                closes[effect.message.step] = effect.message
            if not isinstance(effect, SendAverageSet):
                continue
            average = effect.message
            assert average.step not in averaged
            averaged.add(average.step)
            assert average.step_close == closes[average.step].digest()
            if average.members:
                counted: dict[PeerId, list[UnitId]] = {}
                for member in average.members:
                    peer, units = units_of[member.grad_commit]
                    counted.setdefault(peer, []).extend(units)
                wanted = {each.peer: list(each.units) for each in closes[average.step].assignments}
                assert {peer: sorted(units) for peer, units in counted.items()} == wanted


def check_notices(moments: list[Moment]) -> None:
    """Notices are numbered without gaps, and say each change once."""
    notices: list[Notice] = [
        e.message for m in moments for e in m.effects if isinstance(e, SendNotice)
    ]
    assert [notice.number for notice in notices] == list(range(len(notices)))
    members: set[PeerId] = set()
    for notice in notices:
        assert (notice.peer in members) == (notice.what == "leave")
        members ^= {notice.peer}


def check_steps(moments: list[Moment]) -> None:
    """Steps are sealed one after the other, each once, and nothing follows the last seal."""
    sealed = [m.event for m in moments if isinstance(m.event, SealStored)]
    assert [event.step for event in sealed] == list(range(1, len(sealed) + 1))
    assert all(not event.last for event in sealed[:-1])
    assert len(sealed) <= STEPS


def check_doers(moments: list[Moment]) -> None:
    """A copy stays until it is lacking or a higher attempt comes; the struck have none."""
    for before, after in pairwise(moments):
        drafts = [getattr(moment.state.phase, "draft", None) for moment in (before, after)]
        first, second = drafts
        if first is None or second is None or before.state.step != after.state.step:
            continue
        assert all(
            second.done[place] == kept or second.done[place].attempt > kept.attempt
            for place, kept in first.done.items()
            if place in second.done
        )
        assert second.struck.isdisjoint(copy.peer for copy in second.done.values())


def check_deadlines(moments: list[Moment]) -> None:
    """No phase outlives its deadline while every stage has somebody."""
    for moment in moments:
        phase = moment.state.phase
        ends = getattr(phase, "ends", None)
        if isinstance(phase, Averaging):
            ends = lapses_at(moment.state, phase)
        assert ends is None or moment.state.standing_since is not None or moment.state.at < ends


def check_repetition(moments: list[Moment]) -> None:
    """An event that comes again at the same moment changes nothing and asks for nothing."""
    for moment in moments:
        if isinstance(moment.event, PeerLost | PeerReturned | PeerJoined | SealStored):
            continue  # a seal is followed by the next step; who is here may change in between
        state, effects = step.advance(moment.state, moment.event)
        assert effects == ()
        assert state == moment.state


def check_all(moments: list[Moment]) -> None:
    check_closes(moments)
    check_averages(moments)
    check_notices(moments)
    check_steps(moments)
    check_doers(moments)
    check_deadlines(moments)
    check_repetition(moments)


def check_replay(moments: list[Moment]) -> None:
    """The state is the fold of what the journal holds."""
    stored = [journaled.encode_event(moment.event) for moment in moments]
    state = journaled.replay(TERMS, [journaled.decode_event(data) for data in stored])
    assert state == (moments[-1].state if moments else SwarmState(TERMS))


@given(seeds)
def test_machine__any_life__keeps_its_invariants(seed: int) -> None:
    check_all(live(seed))


@given(seeds)
def test_journal__any_life__replay_is_the_state(seed: int) -> None:
    """Catches: `encode_event` that loses the moment of an event."""
    check_replay(live(seed))


PHASES_AND_EFFECTS = (
    "Working", "Closed", "Committed", "Averaging", "Finished", "SendNotice", "SendStepClose",
    "SendAverageSet", "BuildSeal", "Redo", "EndedWithoutUpdate",
)  # fmt: skip


def test_lives__of_many_seeds__reach_every_phase() -> None:
    reached: set[str] = set()

    for seed in range(60):
        for moment in live(seed):
            reached.add(type(moment.state.phase).__name__)
            reached.update(type(effect).__name__ for effect in moment.effects)

    assert set(PHASES_AND_EFFECTS) <= reached
    assert duties.next_deadline(SwarmState(TERMS)) is None
