"""What a seal names is held by enough, whatever members say and whoever goes.

Each life begins with an AverageSet: three members, of two owners or of three.
"""

from itertools import pairwise
from random import Random

from hypothesis import given

from contracts.terms.chunks import Chunk
from contracts.terms.ids import PeerId, StepNumber
from contracts.terms.moments import UnixMillis
from tests.property.test_swarm_machine import Moment, seeds
from tests.unit.training.swarm.factories import (
    A,
    B,
    C,
    Swarm,
    averaged_chunk,
    joining,
    owner_of,
    terms,
)
from training.swarm import step
from training.swarm.events import (
    ChunkAveraged,
    ChunksHeld,
    Event,
    KeepChunks,
    MeansKept,
    MeansWithheld,
    PartsDenied,
    PeerLost,
    PeerReturned,
    Ticked,
)
from training.swarm.state import Averaging

PEERS = (A, B, C)
TERMS = terms(peers=3, units=3, chunks=2)
KINDS = ("average", "average", "have", "have", "have", "keep", "withhold", "deny", "lose",
         "return", "tick")  # fmt: skip
SPANS = (0, 0, 0, 100, 700)
NUM_EVENTS = 40


def live(seed: int) -> list[Moment]:
    """The life of an AverageSet, until its step is about to be sealed."""
    chance, swarm = Random(seed), Swarm(TERMS)
    owners = {C: owner_of(chance.choice((B, C)))}
    for peer in PEERS:
        swarm.tell(joining(peer, owner=owners.get(peer), at=swarm.now))
    for number, peer in enumerate(PEERS):
        swarm.work(peer, number)
    swarm.commit(*PEERS)
    swarm.hold(*PEERS)
    state = swarm.state
    moments = [Moment(swarm.events[-1], state, ())]
    for _ in range(NUM_EVENTS):
        if not isinstance(state.phase, Averaging):
            break
        swarm.now += chance.choice(SPANS)
        event = event_of(chance, state.phase, swarm.at)
        state, effects = step.advance(state, event)
        moments.append(Moment(event, state, effects))
    return moments


def event_of(chance: Random, phase: Averaging, at: UnixMillis) -> Event:
    """Any event of this phase, true or not."""
    kind, peer, name = chance.choice(KINDS), chance.choice(PEERS), chance.choice(TERMS.chunks)
    number = StepNumber(phase.average.step)
    match kind:
        case "average":
            return ChunkAveraged(averaged_chunk(peer, phase.average, name[1]), at)
        case "have":
            return ChunksHeld(number, peer, (name,), at)
        case "keep":
            return MeansKept(number, (name,), at)
        case "withhold":
            return MeansWithheld(number, peer, (name,), at)
        case "deny":
            return PartsDenied(number, peer, at)
        case "lose":
            return PeerLost(peer, at)
        case "return":
            return PeerReturned(peer, "", StepNumber(number - 1), at)
    return Ticked(at)


def check_holders(moments: list[Moment]) -> None:
    """Two owners hold what a seal names; or one, and no other is here or the coordinator has it."""
    for before, after in pairwise(moments):
        phase, event, step = before.state.phase, after.event, before.state.step
        if not any(isinstance(each, KeepChunks) for each in after.effects):
            continue
        assert isinstance(phase, Averaging)
        held: set[tuple[PeerId, Chunk]] = set()
        held |= {(peer, name) for peer, names in phase.held.items() for name in names}
        kept = set(phase.kept)
        match event:
            case ChunksHeld(peer=peer, chunks=names):
                held |= {(peer, name) for name in names}
            case ChunkAveraged(chunk=chunk):
                held.add((chunk.peer, (chunk.stage, chunk.chunk)))
            case MeansKept(chunks=names):
                kept |= set(names)
        here = [member for member in after.state.members.values() if member.is_here]
        asked = {m.owner for m in here if m.applied == step - 1}
        for name in TERMS.chunks:
            owners = {member.owner for member in here if (member.peer, name) in held}
            assert len(owners) >= (1 if name in kept else max(1, min(2, len(asked))))


@given(seeds)
def test_securing__any_life__no_seal_names_what_too_few_hold(seed: int) -> None:
    check_holders(live(seed))


def test_lives__of_all_seeds__are_sealed_with_and_without_an_update() -> None:
    ends = [live(seed)[-1] for seed in range(50)]

    kept = {any(isinstance(each, KeepChunks) for each in moment.effects) for moment in ends}
    assert kept == {True, False}
