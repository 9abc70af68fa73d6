"""Which results count, and what is opened again. Pure.

An item is dealt to one peer of a group at a time; which one is the router's to know. Here its first
result counts, if it fits: a tensor that two groups name has one digest. What counts is either
claimed, or unclaimed work of its peer. It is opened again, in its group alone, when the peer lacks
it, is silent or stays away, or when the claim over it expires.

A peer claims exactly what counts as its work; one whose gradient holds anything else builds it
again from kept tensors. So nothing is subtracted, and an item that moves costs nobody else work.

Invariants: an item counts once in a group; its result stays while its peer or its claim does;
results of an item that count in several groups agree on every name.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from contracts.terms.ids import Digest, PeerId
from contracts.terms.moments import UnixMillis
from contracts.terms.work import WorkClaim
from training.rounds.events import ItemsDone, ItemsLost
from training.rounds.membership import is_due
from training.rounds.state import (
    NOTHING,
    Commit,
    OpenRound,
    RoundState,
    Work,
    can_work,
    in_group,
    with_failing,
    with_open,
    with_phase,
)
from training.strategies.port import Group, Item, Items, Result


def take_results(state: RoundState, event: ItemsDone) -> RoundState:
    """Results that count from now on; the others change nothing."""
    member = state.members.get(event.peer)
    match state.phase:
        case Work(open=open) if member is not None and _may_count(state, open, event.peer):
            own = dict(open.counted[member.group])
            counted = {**open.counted, member.group: own}  # grows here, and is nobody's else yet
            for result in event.results:
                place = result.peer, result.group
                if place == (event.peer, member.group) and _counts(open, counted, result):
                    own[result.item] = result
            fresh = own.keys() - open.counted[member.group].keys()
            if fresh:
                work = open.unclaimed.get(event.peer, NOTHING) | fresh
                unclaimed = {**open.unclaimed, event.peer: work}
                return with_open(state, replace(open, counted=counted, unclaimed=unclaimed))
    return state


def _may_count(state: RoundState, open: OpenRound, peer: PeerId) -> bool:
    current = state.is_current(state.members[peer])
    return current and peer not in open.off and state.may(peer)


def _counts(
    open: OpenRound, counted: Mapping[Group, Mapping[Item, Result]], result: Result
) -> bool:
    if result.item not in open.issued or result.item in counted[result.group]:
        return False
    own = dict(result.tensors)
    for results in counted.values():
        other = results.get(result.item)
        if other is not None and any(own.get(n, digest) != digest for n, digest in other.tensors):
            return False
    return True


# --------------------------------------------------------------------------------- opened again


def lose(state: RoundState, event: ItemsLost) -> RoundState:
    """Results that are of no use are opened again."""
    match state.phase:
        case Work(open=open) | Commit(open=open):
            items = frozenset(event.items)
            if event.peer is None:
                return start_over(state, items & open.issued)
            # Whoever still lacks something when claims are asked for again could do so for ever.
            lacks_again = open.num_commits > 1 and bool(
                items & open.unclaimed.get(event.peer, NOTHING)
            )
            if not (event.off or lacks_again):
                return give_up(state, event.peer, items)
            if event.peer in state.members and event.peer not in open.off:
                state = give_up(state, event.peer, items or None)
                return (blame if lacks_again else put_off)(state, {event.peer})
    return state


def blame(state: RoundState, peers: Iterable[PeerId]) -> RoundState:
    """Put off peers whose work others have to do again; of those connected the owners rest.

    See `membership.resting`. Results cost nothing: who hands in junk and claims none of it would
    else cost every round its time.
    """
    here = (state.members[peer] for peer in peers if peer in state.members)
    owners = {member.owner for member in here if member.is_here}
    state = replace(state, claiming=with_failing(state.claiming, owners, state.round))
    return put_off(state, peers)


def put_off(state: RoundState, peers: Iterable[PeerId]) -> RoundState:
    """Give these peers no more items in this round."""
    assert isinstance(state.phase, Work | Commit)
    open = state.phase.open
    return with_open(state, replace(open, off=open.off.union(peers)))


def give_up(state: RoundState, peer: PeerId, items: Items | None = None) -> RoundState:
    """Open unclaimed work of a member again; all of it if `items` is None."""
    match state.phase:
        case Work(open=open) | Commit(open=open) if peer in state.members:
            own = open.unclaimed.get(peer, NOTHING)
            gone = own if items is None else own & items
            if gone:
                group = state.members[peer].group
                return _back_to_work(with_open(state, _without(open, {group: gone})))
    return state


def expire(state: RoundState, names: Iterable[Digest]) -> RoundState:
    """Forget claims, and open all their items again; their peers are off."""
    assert isinstance(state.phase, Work | Commit)
    open = state.phase.open
    gone = [open.claims[name] for name in names]
    if not gone:
        return state
    open = _without(replace(open, claims=_less(open, gone)), _places(gone))
    state = put_off(with_open(state, open), {claim.peer for claim in gone})
    return _back_to_work(state)


def fail(state: RoundState, names: Collection[Digest]) -> RoundState:
    """Forget claims by the fault of their peers."""
    assert isinstance(state.phase, Work | Commit)
    claims = state.phase.open.claims
    return blame(expire(state, names), {claims[name].peer for name in names})


def start_over(state: RoundState, items: Items) -> RoundState:
    """Items whose tensors are gone count in no group any more.

    A claim that covers one is void; what else it covers is its peer's to claim anew.
    """
    match state.phase:
        case Work(open=open) | Commit(open=open):
            places = {group: items.intersection(results) for group, results in open.counted.items()}
            if any(places.values()):
                return _back_to_work(with_open(state, drop(state, open, places, items)))
    return state


def drop(
    state: RoundState, open: OpenRound, places: Mapping[Group, Items], items: Items
) -> OpenRound:
    """Without results in `places`, and without claims that cover any of `items`."""
    torn = [claim for claim in open.claims.values() if not items.isdisjoint(claim.numbers)]
    unclaimed = dict(open.unclaimed)
    orphaned: dict[Group, Items] = dict(places)
    for claim in torn:
        rest = frozenset(claim.numbers) - items
        if claim.peer in state.members and claim.peer not in open.off:
            unclaimed[claim.peer] = unclaimed.get(claim.peer, NOTHING) | rest
        else:
            orphaned[claim.group] = orphaned.get(claim.group, NOTHING) | rest
    unclaimed = {peer: own for peer, own in unclaimed.items() if own}
    open = replace(open, claims=_less(open, torn), unclaimed=unclaimed)
    return _without(open, orphaned)


def give_up_the_lost(state: RoundState) -> RoundState:
    """Open again what members have not claimed that are away too long, if others can do it."""
    match state.phase:
        case Work(open=open) | Commit(open=open):
            for peer in sorted(state.watched & open.unclaimed.keys()):
                member = state.members[peer]
                if is_due(state, member) and has_worker(state, open, member.group):
                    state = give_up(state, peer)
    return state


def has_worker(state: RoundState, open: OpenRound, group: Group) -> bool:
    """Whether a member of a group may be given items now."""
    return any(can_work(state, member, open.off) for member in in_group(state, group))


def is_stuck(state: RoundState, open: OpenRound) -> bool:
    """Whether a group has open items, and nobody but members that are off in this round."""
    if not open.off:
        return False
    groups = {state.members[peer].group for peer in open.off if peer in state.members}
    return any(
        len(open.counted[group]) < len(open.issued) and not _has_hope(state, open, group)
        for group in groups
    )


def _has_hope(state: RoundState, open: OpenRound, group: Group) -> bool:
    return any(
        not is_due(state, member)
        and not member.is_leaving
        and member.peer not in open.off
        and state.may(member.peer)
        for member in in_group(state, group)
    )


def _places(claims: Iterable[WorkClaim]) -> dict[Group, Items]:
    places: dict[Group, Items] = {}
    for claim in claims:
        places[claim.group] = places.get(claim.group, NOTHING).union(claim.numbers)
    return places


def _less(open: OpenRound, gone: Iterable[WorkClaim]) -> dict[Digest, WorkClaim]:
    names = {claim.digest() for claim in gone}
    return {name: claim for name, claim in open.claims.items() if name not in names}


def _without(open: OpenRound, places: Mapping[Group, Items]) -> OpenRound:
    """Results in `places` do not count any more."""
    counted = dict(open.counted)
    unclaimed = dict(open.unclaimed)
    for group, items in places.items():
        results = counted[group]
        for item in items & results.keys():
            peer = results[item].peer
            if left := unclaimed.get(peer, NOTHING) - {item}:
                unclaimed[peer] = left
            else:
                unclaimed.pop(peer, None)
        counted[group] = {item: each for item, each in results.items() if item not in items}
    return replace(open, counted=counted, unclaimed=unclaimed)


def _back_to_work(state: RoundState) -> RoundState:
    """Claims wait until what was opened is done again; those that are stored stay."""
    if not isinstance(state.phase, Commit):
        return state
    open = state.phase.open
    assert open.work_ends is not None
    if state.stopping or state.at >= open.work_ends:
        ends = UnixMillis(state.at + state.terms.commit_ms)
        return with_phase(state, Work(open, ends, extended=True))
    return with_phase(state, Work(open, open.work_ends))
