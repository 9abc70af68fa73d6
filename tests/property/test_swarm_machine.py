"""Invariants of the step machine over random lives of a job, whatever its members say.

What holds where members do what they can is shown in `test_swarm_histories`. Three members are of
two owners or of three.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import Address, ChunkIndex, PeerId, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from tests.unit.training.swarm.factories import (
    STAGE,
    A,
    B,
    C,
    Swarm,
    averaged_chunk,
    copy,
    grad_commit,
    joining,
    owner_of,
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
    KeepChunks,
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
    SendNotice,
    StopAsked,
    Ticked,
    UnitsDone,
    UnitsLacked,
)
from training.swarm.securing import lapses_at
from training.swarm.state import Averaging, Closed, Committed, Phase, SwarmState

PEERS, UNITS, STEPS = (A, B, C), 4, 3
TERMS = terms(peers=2, units=UNITS, steps=STEPS, chunks=2)

KINDS = (
    "join", "work", "work", "work", "work", "lack", "commit", "commit", "commit", "hold", "hold",
    "average", "average", "apply", "apply", "lose", "return", "return", "tick", "resume", "stop",
    "deny", "keep", "withhold", "break", "leave", "have", "have", "have",
)  # fmt: skip
USUAL: dict[type[Phase], tuple[str, ...]] = {
    Closed: ("commit",),
    Committed: ("hold",),
    Averaging: ("average", "average", "have", "have", "have", "keep", "lose", "return", "tick"),
}
"""What is more likely in a phase, so that lives come further."""
SHORT, SPANS = (0, 0, 0, 100, 700), (0, 0, 0, 1, 300, 1000, 4000, 11_000)
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
    owners = {peer: owner_of(peer) for peer in PEERS} | {C: owner_of(chance.choice((B, C)))}
    moments: list[Moment] = []

    def tell(event: Event) -> None:
        nonlocal state
        state, effects = step.advance(state, event)
        moments.append(Moment(event, state, effects))
        for effect in effects:
            if isinstance(effect, BuildSeal):
                tell(SealStored(effect.step, effect.last, event.at))

    if chance.random() < 0.5:  # few others come as far
        for early in until_averaging(owners):
            tell(early)
    for _ in range(NUM_EVENTS):
        usual = USUAL.get(type(state.phase), ()) if chance.random() < 0.9 else ()
        now += chance.choice(SHORT if usual else SPANS)
        kind, peer = chance.choice(usual or KINDS), chance.choice(PEERS)
        event = event_of(state, kind, peer, chance.getrandbits(UNITS + 1), UnixMillis(now))
        if isinstance(event, PeerJoined):
            event = replace(event, owner=owners[peer])
        if event is not None:
            tell(Ticked(event.at))  # so that what follows is the event's doing, not the hour's
            tell(event)
    return moments


def until_averaging(owners: Mapping[PeerId, Address]) -> list[Event]:
    """An undisturbed step up to its AverageSet."""
    swarm = Swarm(TERMS)
    for peer in PEERS:
        swarm.tell(joining(peer, owner=owners[peer], at=swarm.now))
    for peer, units in zip(PEERS, ((0, 1), (2,), (3,)), strict=True):
        swarm.work(peer, *units)
    swarm.commit(*PEERS)
    swarm.hold(*PEERS)
    return swarm.events


def event_of(
    state: SwarmState, kind: str, peer: PeerId, number: int, at: UnixMillis
) -> Event | None:
    """An event of this kind; `number` chooses units, chunks or an older step."""
    units = tuple(ItemNumber(unit) for unit in range(UNITS + 1) if number >> unit & 1)
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
        case "keep":
            return MeansKept(state.step, TERMS.chunks[:2], at)
        case "withhold" if number % 4 == 0:
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


def check_holders(moments: list[Moment]) -> None:
    """Two owners hold what a seal names; or one, and no other is here or the coordinator has it."""
    for before, after in pairwise(moments):
        if not any(isinstance(each, KeepChunks) for each in after.effects):
            continue
        phase = before.state.phase
        assert isinstance(phase, Averaging)
        held = {(peer, name) for peer, names in phase.held.items() for name in names}
        kept = set(phase.kept)
        match after.event:
            case ChunksHeld(peer=peer, chunks=names):
                held |= {(peer, name) for name in names}
            case ChunkAveraged(chunk=chunk):
                held.add((chunk.peer, (chunk.stage, chunk.chunk)))
            case MeansKept(chunks=names):
                kept |= set(names)
        here = [member for member in after.state.members.values() if member.is_here]
        asked = {m.owner for m in here if m.applied == before.state.step - 1}
        for name in TERMS.chunks:
            owners = {member.owner for member in here if (member.peer, name) in held}
            assert len(owners) >= (1 if name in kept else max(1, min(2, len(asked))))


def check_replay(moments: list[Moment]) -> None:
    """The state is the fold of what the journal holds."""
    stored = [journaled.encode_event(moment.event) for moment in moments]
    state = journaled.replay(TERMS, [journaled.decode_event(data) for data in stored])
    assert state == (moments[-1].state if moments else SwarmState(TERMS))


@pytest.mark.parametrize(
    "check", [check_notices, check_deadlines, check_repetition, check_holders, check_replay]
)
@given(seeds)
def test_machine__any_life__keeps_its_invariants(
    check: Callable[[list[Moment]], None], seed: int
) -> None:
    check(live(seed))


PHASES_AND_EFFECTS = (
    "Working", "Closed", "Committed", "Averaging", "Finished", "SendNotice", "SendStepClose",
    "SendAverageSet", "KeepChunks", "BuildSeal", "Redo", "EndedWithoutUpdate",
)  # fmt: skip


def test_lives__of_many_seeds__reach_every_phase() -> None:
    reached: set[str] = set()

    for seed in range(60):
        for moment in live(seed):
            reached.add(type(moment.state.phase).__name__)
            reached.update(type(effect).__name__ for effect in moment.effects)

    assert set(PHASES_AND_EFFECTS) <= reached
    assert duties.next_deadline(SwarmState(TERMS)) is None
