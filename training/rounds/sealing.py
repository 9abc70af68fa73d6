"""How a round ends, and what of it the next one has. Pure.

An update seals what RoundClosed names, and moves the cursor. A void round moves nothing: its stored
claims are handed on with the results that they cover, and are merged once, by a later round, or
expire with the state that they started from; where late claims are merged, one update later: who is
slow to deliver goes on while the next round is worked on. After three void rounds that blamed
nobody new, the job pauses. A round without work lets draws go on: in a pause, and at the end of a
checked job.

Invariants: an item is sealed once; a claim is sealed once or expires; a void round seals no work.
"""

from collections.abc import Iterable
from dataclasses import replace

from contracts.governance.gates import remember
from contracts.terms.ids import Digest
from contracts.terms.work import WorkClaim
from training.rounds.closing import peer_steps
from training.rounds.events import Change, Sealed, Send
from training.rounds.membership import resting
from training.rounds.reducing import owners_that_missed
from training.rounds.state import (
    NO_BYTES,
    Finished,
    OpenRound,
    Reduce,
    RoundState,
    Seal,
    What,
    begin_round,
    with_failing,
    with_phase,
)
from training.strategies.port import Item, RoundNumber

MAX_VOIDS = 3


def seal_update(state: RoundState) -> Change:
    """Every bucket is reduced, and held."""
    assert isinstance(state.phase, Reduce)
    missed = owners_that_missed(state)
    phase = state.phase
    state = replace(state, holding=with_failing(state.holding, missed, state.round))
    return with_phase(state, Seal(phase.open, "update", phase.buckets, phase.closed)), ()


def seal_nothing(state: RoundState, what: What) -> Change:
    """A round that came to nothing, or had no work."""
    assert not isinstance(state.phase, Finished)
    return with_phase(state, Seal(state.phase.open, what)), ()


def merged_claims(phase: Seal) -> dict[Digest, WorkClaim]:
    """What an update merges."""
    if phase.closed is None:
        return {}
    return {name: phase.open.claims[name] for name in phase.closed.weights}


def _sealed_by(state: RoundState) -> set[Item]:
    phase = state.phase
    claims = merged_claims(phase) if isinstance(phase, Seal) else {}
    return {item for claim in claims.values() for item in claim.numbers}


def ends_work(state: RoundState) -> bool:
    """Whether no round after this one has work."""
    ordered = state.terms.layout.ordered_items
    is_complete = state.sealed_items + len(_sealed_by(state)) >= ordered
    return state.draining or state.stopping or is_complete


def is_last_round(state: RoundState) -> bool:
    """Whether the seal that is due ends the job; of a checked one only if no draw is left open."""
    if not state.terms.is_checked:
        return ends_work(state)
    is_empty = isinstance(state.phase, Seal) and state.phase.what == "empty"
    return is_empty and state.draining and state.is_clear and not state.unsealed


def sealed(state: RoundState, event: Sealed) -> Change:
    """The next round, or the end."""
    if not isinstance(state.phase, Seal) or event.round != state.round:
        return state, ()
    phase, updated = state.phase, state.updated
    is_undrawn = state.terms.is_checked and phase.what != "empty"  # work that was just sealed
    state = replace(
        state,
        draining=ends_work(state),
        is_clear=state.is_clear and not is_undrawn,
        # Work that is handed on could be closed at once, and what the seal adds may forbid that.
        takes_work=state.takes_work and not state.terms.is_checked,
        unsealed=NO_BYTES,
        seal_wanted=False,
        noticed=frozenset(),
    )
    match phase.what:
        case "update":
            merged = merged_claims(phase)
            state = replace(
                state,
                cursor=state.cursor.after(_sealed_by(state)),
                updates=state.updates + 1,
                updated=state.round,
                gates=remember(state.gates, peer_steps(state, merged)),
                voids=0,
                blamed=frozenset(),
            )
        case "empty":
            state = replace(state, voids=0, blamed=frozenset())
        case "void":
            state = replace(state, voids=state.voids + (not state.is_telling))
    state = replace(state, is_telling=False)
    here = frozenset(peer for peer, member in state.members.items() if member.is_here)
    if event.last:
        # What is left is to validate: whoever is here may, as nothing is earned by it.
        return replace(with_phase(state, Finished()), may_work=None), (Send(here),)
    state = replace(state, round=RoundNumber(state.round + 1))
    return _next_round(state, phase, updated), (Send(here),)


def _next_round(state: RoundState, phase: Seal, updated: RoundNumber) -> RoundState:
    """Begin the next round; `updated` is that of the newest update before this seal."""
    # Before a pause everybody may try, at everything: those for whom others rest may do nothing.
    is_last_try = state.voids + 1 >= MAX_VOIDS
    off = frozenset() if is_last_try else resting(state)
    # No seal takes a claim of who has left in the round before (`governance.rounds.eligible`).
    kept = phase.open.claims.items()
    claims = {name: claim for name, claim in kept if claim.peer in state.members}
    if phase.what == "update":
        merged = merged_claims(phase)
        # Of the state before this update alone: staleness 1.
        claims = {n: each for n, each in claims.items() if n not in merged and each.round > updated}
        if not state.terms.layout.merges_late or _are_all(state, claims.values()):
            claims = {}
    elif is_last_try:  # of late claims alone no update is made, nor of what nobody delivers
        claims = {
            name: each
            for name, each in claims.items()
            if not state.is_late(each) and _is_with_others(state, phase.open, each)
        }
    counted = {
        group: {
            item: result
            for claim in claims.values()
            if claim.group == group
            for item in claim.numbers
            for result in [results[item]]
        }
        for group, results in phase.open.counted.items()
    }
    shards = frozenset(out.digest for claim in claims.values() for out in claim.outputs)
    held = {peer: own & shards for peer, own in phase.open.held.items()}
    return begin_round(state, claims, counted, held, off)


def _is_with_others(state: RoundState, open: OpenRound, claim: WorkClaim) -> bool:
    """Whether all shards of a claim are with peers of other owners, or with the coordinator."""
    owner = state.owners[claim.peer]
    others = [own for peer, own in open.held.items() if state.owners.get(peer) != owner]
    return frozenset().union(*others).issuperset(output.digest for output in claim.outputs)


def _are_all(state: RoundState, claims: Iterable[WorkClaim]) -> bool:
    """Whether nothing else is left of the job: an update needs work on the newest state."""
    num = sum(len(claim.numbers) for claim in claims)
    return num == state.terms.layout.ordered_items - state.sealed_items
