"""Which peer of a group reduces which bucket, and who stands in for it. Pure.

Buckets are dealt in proportion to bandwidth: whole buckets by D'Hondt's highest averages, which is
what Hagenbach-Bischoff comes to (hivemind's load balancing, DeDLOC 2106.10207). Who comes next is
found in a ring that a hash of round and peer orders, from another place for each bucket: so nobody
can choose whose bucket it comes to, and what a lost peer reduced is spread over its group.

Invariant: equal arguments give equal answers, whoever asks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heapreplace

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.ids import Address, PeerId
from training.rounds.state import OpenRound, RoundState, has_failed, in_group
from training.strategies.port import Bucket, Group, Member, RoundNumber


def deal(state: RoundState, open: OpenRound) -> OpenRound:
    """Every bucket with a reducer; one that can still be is left its buckets.

    Reducers are those that are asked for a claim or have claimed: what a peer is to reduce it is
    given only once its own claim is stored.
    """
    dealing: dict[Bucket, PeerId] = {}
    for group in state.terms.groups:
        able = _able(state, open, group)
        dealing |= _dealt(state.terms.layout.reduced_in(group), able, open.dealing)
    return replace(open, dealing=dealing)


def _able(state: RoundState, open: OpenRound, group: Group) -> list[Member]:
    own = in_group(state, group)
    claims = (claim for claim in open.claims.values() if not state.is_late(claim))
    at_work = {claim.peer for claim in claims} | open.unclaimed.keys()
    here = [m for m in own if m.is_here and state.is_current(m)]
    working = [m for m in here if m.peer in at_work]
    sound = [m for m in working if not has_failed(state.reducing, m.owner, state.round)]
    return sound or working or here or own


def _dealt(
    buckets: Sequence[Bucket], able: Sequence[Member], before: Mapping[Bucket, PeerId]
) -> dict[Bucket, PeerId]:
    names = {member.peer for member in able}
    dealing = {each: before[each] for each in buckets if before.get(each) in names}
    numbers = dict.fromkeys(names, 0)
    for peer in dealing.values():
        numbers[peer] += 1
    heap = [_average(member, place, numbers[member.peer]) for place, member in enumerate(able)]
    heapify(heap)
    for bucket in buckets:
        if bucket not in dealing:
            _, place = heap[0]
            member = able[place]
            dealing[bucket] = member.peer
            numbers[member.peer] += 1
            heapreplace(heap, _average(member, place, numbers[member.peer]))
    return dealing


def _average(member: Member, place: int, number: int) -> tuple[Fraction, int]:
    return -Fraction(member.bandwidth, number + 1), place


class Ring:
    """The members of a group in the order in which they stand in for each other in a round."""

    def __init__(self, state: RoundState, group: Group) -> None:
        """Of the round in work."""
        members = {member.peer: member for member in in_group(state, group)}
        order = _ring(state.round, tuple(sorted(members)))
        self._state, self._members = state, [members[peer] for peer in order]

    def other_owner(self, bucket: Bucket, owner: Address) -> Member | None:
        """A member of another owner, connected and up to date if there is one."""
        found = None
        for member in self._from(bucket):
            if member.owner != owner:
                if member.is_here and self._state.is_current(member):
                    return member
                found = found or member
        return found

    def stand_in(self, bucket: Bucket, asked: Collection[PeerId]) -> PeerId | None:
        """Who reduces a bucket when those who were asked did not; None: nobody is left."""
        able = [
            member
            for member in self._from(bucket)
            if member.is_here and self._state.is_current(member) and member.peer not in asked
        ]
        failed, round = self._state.reducing, self._state.round
        sound = (each for each in able if not has_failed(failed, each.owner, round))
        chosen = next(sound, able[0] if able else None)
        return None if chosen is None else chosen.peer

    def _from(self, bucket: Bucket) -> Iterable[Member]:
        start = bucket[1] % len(self._members) if self._members else 0
        yield from self._members[start:]
        yield from self._members[:start]


@lru_cache(maxsize=256)
def _ring(round: RoundNumber, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    return tuple(sorted(peers, key=lambda peer: digest("stand_in", encode([round, peer]))))
