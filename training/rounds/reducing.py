"""From RoundClosed to the seal: who reduces a bucket, and who holds it. Pure.

A sealed round is applied by everybody, so what its seal names has to be there. Each bucket is held
by members of two owners that are connected, or by one and the coordinator; by one, where all who
apply it are of one owner. The coordinator is asked to keep at once what no other owner is here for,
and at half of `reduce_ms` what still too few hold.

When `reduce_ms` is over, the next peer in the ring is asked for each bucket that is missing, or
that its reducer gives to nobody; where the reducer is away, after `redo_after`. What the later one
claims counts, and the owner of the dealt reducer has failed: it reduces nothing for 2, 4, 8 rounds.
After as long again the round is void, and its claims are handed on.

When every bucket is held by enough, members that do not hold all of them yet are waited for until
`hold_ms` are over; not at all while their owner is remembered for having missed seals.

Invariant: no seal names a bucket that fewer hold than said here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from contracts.terms.ids import Address, ChunkIndex, Digest, PeerId
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from training.rounds.closing import take_held, with_givers
from training.rounds.dealing import Ring
from training.rounds.events import Change, Held, Reduced, Send
from training.rounds.membership import is_due, passed
from training.rounds.state import (
    COORDINATOR,
    NO_BYTES,
    Reduce,
    RoundState,
    has_failed,
    with_failing,
    with_phase,
)
from training.strategies.port import Bucket, Group, Member

_NOBODY: frozenset[Address] = frozenset()


# ------------------------------------------------------------------------------------- the claims


def take_reduced(state: RoundState, event: Reduced) -> Change:
    """The claim of a bucket by who was asked for it; of several the one who was asked last."""
    claim = event.claim
    bucket = claim.group, ChunkIndex(claim.bucket)
    match state.phase:
        case Reduce() as phase if claim.subject == phase.closed.digest():
            asked, known = phase.asked.get(bucket, ()), phase.buckets.get(bucket)
            if known is not None:  # only who was asked later can replace it
                asked = asked[asked.index(known.message.peer) + 1 :]
            if claim.peer not in asked:
                return state, ()
            buckets = {**phase.buckets, bucket: Signed(claim, event.signature)}
            held = Held(claim.peer, frozenset({claim.outputs[0].digest}), event.at)
            phase = replace(
                phase,
                open=take_held(phase.open, held),
                buckets=buckets,
                owing=_without(phase.owing, claim.peer, {bucket}),
            )
            state = with_phase(state, phase)
            is_last = len(buckets) == len(state.terms.buckets)
            state = with_holders(state) if known or is_last else _with_fresh(state, bucket)
            return state, (Send(frozenset({claim.peer})),)
    return state, ()


def _without(
    owing: Mapping[PeerId, frozenset[Bucket]], peer: PeerId, buckets: Iterable[Bucket]
) -> dict[PeerId, frozenset[Bucket]]:
    left = owing.get(peer, frozenset()).difference(buckets)
    others = {**owing, peer: left}
    if not left:
        del others[peer]
    return others


def _with_fresh(state: RoundState, bucket: Bucket) -> RoundState:
    """With the first claim of a bucket, which its reducer alone can hold as yet."""
    assert isinstance(state.phase, Reduce)
    phase, claim = state.phase, state.phase.buckets[bucket].message
    digest = claim.outputs[0].digest
    if digest not in phase.holders:
        member = state.members.get(claim.peer)
        owners = frozenset({member.owner}) if member and member.is_here else _NOBODY
        phase = replace(phase, holders={**phase.holders, digest: owners})
    if _is_thin(phase, digest, phase.needs[bucket]):
        phase = replace(phase, thin=phase.thin | {digest})
    return with_phase(state, phase)


# ------------------------------------------------------------------------------------ the holders


def take_held_bucket(state: RoundState, event: Held) -> RoundState:
    """Somebody holds buckets, or shards that it was asked to reduce."""
    assert isinstance(state.phase, Reduce)
    phase = replace(state.phase, open=take_held(state.phase.open, event))
    fresh, member = phase.thin & event.digests, state.members.get(event.holder)
    if member is not None and member.is_here:
        if fresh:
            owners = {digest: phase.holders[digest] | {member.owner} for digest in fresh}
            phase = replace(phase, holders={**phase.holders, **owners})
        if event.holder in phase.waiting and _has_all(phase, member):
            phase = replace(phase, waiting=phase.waiting - {event.holder})
    if fresh:
        needs = _needs(phase)
        enough = {each for each in fresh if not _is_thin(phase, each, needs[each])}
        phase = replace(phase, thin=phase.thin - enough)
    return with_phase(state, phase)


def with_holders(state: RoundState) -> RoundState:
    """With who holds what found out anew: members came, went, or gave way to others."""
    if not isinstance(state.phase, Reduce):
        return state
    phase, layout = state.phase, state.terms.layout
    here = [member for member in state.members.values() if member.is_here]
    owners = {
        group: {m.owner for m in state.members.values() if m.group == group}
        for group in layout.groups
    }
    ready = {
        group: {m.owner for m in here if m.group == group and state.is_current(m)}
        for group in layout.groups
    }
    needs = {bucket: min(2, len(each)) for bucket, each in _by_bucket(state, owners).items()}
    scarce = frozenset(b for b, each in _by_bucket(state, ready).items() if len(each) < needs[b])
    digests = {bucket: _digest(phase, bucket) for bucket in phase.buckets}
    known = frozenset(digests.values())
    holders: defaultdict[Digest, set[Address]] = defaultdict(set)
    for member in here:
        for digest in known & phase.open.held.get(member.peer, NO_BYTES):
            holders[digest].add(member.owner)
    phase = replace(
        phase,
        needs=needs,
        scarce=scarce,
        gone=frozenset(each[-1] for each in phase.asked.values()).difference(state.members),
        holders={digest: frozenset(holders[digest]) for digest in known},
        whole={
            group: frozenset(digests[bucket] for bucket in own)
            for group, own in layout.outputs.items()
            if digests.keys() >= set(own)
        },
    )
    by_digest = _needs(phase)
    return replace(
        state,
        phase=replace(
            phase,
            thin=frozenset(each for each in known if _is_thin(phase, each, by_digest[each])),
            waiting=frozenset(
                m.peer for m in here if state.is_current(m) and not _has_all(phase, m)
            ),
        ),
    )


def _by_bucket(
    state: RoundState, owners: Mapping[Group, set[Address]]
) -> Mapping[Bucket, set[Address]]:
    """Owners of those who apply each bucket, from those in each group."""
    found: defaultdict[Bucket, set[Address]] = defaultdict(set)
    for group, buckets in state.terms.layout.outputs.items():
        for bucket in buckets:
            found[bucket] |= owners[group]
    return found


def _needs(phase: Reduce) -> Mapping[Digest, int]:
    """By how many owners each reduced bucket is to be held."""
    needs: dict[Digest, int] = {}
    for bucket in phase.buckets:
        digest = _digest(phase, bucket)
        needs[digest] = max(needs.get(digest, 0), phase.needs[bucket])
    return needs


def _digest(phase: Reduce, bucket: Bucket) -> Digest:
    return phase.buckets[bucket].message.outputs[0].digest


def _is_thin(phase: Reduce, digest: Digest, needed: int) -> bool:
    num_owners = len(phase.holders[digest])
    is_kept = digest in phase.open.held.get(COORDINATOR, NO_BYTES)
    return num_owners < (min(1, needed) if is_kept else needed)


def _has_all(phase: Reduce, member: Member) -> bool:
    applied = phase.whole.get(member.group)
    return applied is not None and applied <= phase.open.held.get(member.peer, NO_BYTES)


def keep_buckets(state: RoundState) -> Change | None:
    """Ask the coordinator for buckets that too few hold; None: for none more."""
    assert isinstance(state.phase, Reduce)
    phase = state.phase
    half = UnixMillis(phase.ends - state.terms.reduce_ms // 2)
    wanted = phase.thin - phase.keeping
    if wanted and not passed(state, half):
        scarce = {_digest(phase, bucket) for bucket in phase.scarce & phase.buckets.keys()}
        wanted &= scarce
    if not wanted:
        return None
    state = with_phase(state, replace(phase, keeping=phase.keeping | wanted))
    claims = (signed.message for signed in phase.buckets.values())
    return state, (with_givers(phase.open, wanted, claims),)


# ---------------------------------------------------------------------------------- time goes on


def pass_on_from_the_lost(state: RoundState) -> Change | None:
    """Ask others for what reducers that are away, or have left, owe or took with them.

    None: there is nothing.
    """
    assert isinstance(state.phase, Reduce)
    phase = state.phase
    lost = {peer for peer in state.watched if is_due(state, state.members[peer])} | phase.gone
    if not lost:
        return None
    kept = phase.open.held.get(COORDINATOR, NO_BYTES)
    nowhere = {digest for digest in phase.thin - kept if not phase.holders[digest]}
    buckets = {
        bucket
        for bucket, asked in phase.asked.items()
        if asked[-1] in lost
        and (bucket in phase.owing.get(asked[-1], ()) or _digest(phase, bucket) in nowhere)
    }
    return _passed_on(state, buckets)


def late(state: RoundState) -> Change | None:
    """`reduce_ms` are over: ask others, and remember whose fault it is; None: it is the end."""
    assert isinstance(state.phase, Reduce)
    phase = state.phase
    if phase.extended:
        return None
    thin = {bucket for bucket in phase.buckets if _digest(phase, bucket) in phase.thin}
    missing = ({*state.terms.buckets} - phase.buckets.keys()) | thin
    dealt = {phase.asked[bucket][0] for bucket in missing if len(phase.asked[bucket]) == 1}
    here = (state.members[peer] for peer in dealt if peer in state.members)
    at_fault = {member.owner for member in here if member.is_here}
    state = replace(
        state,
        reducing=with_failing(state.reducing, at_fault, state.round),
        is_telling=state.is_telling or not at_fault <= state.blamed,
        blamed=state.blamed | at_fault,
        phase=replace(
            phase,
            extended=True,
            ends=UnixMillis(phase.ends + state.terms.reduce_ms),
            keeping=NO_BYTES,
        ),
    )
    return _passed_on(state, missing) or (state, ())


def _passed_on(state: RoundState, buckets: Iterable[Bucket]) -> Change | None:
    """Each bucket to the next in its ring, if there is one."""
    assert isinstance(state.phase, Reduce)
    phase = state.phase
    asked, owing = dict(phase.asked), dict(phase.owing)
    moved: set[PeerId] = set()
    for bucket in sorted(buckets):
        peer = Ring(state, bucket[0]).stand_in(bucket, asked[bucket])
        if peer is not None:
            owing = _without(owing, asked[bucket][-1], {bucket})
            owing[peer] = owing.get(peer, frozenset()) | {bucket}
            moved |= {peer, asked[bucket][-1]}
            asked[bucket] = (*asked[bucket], peer)
    if not moved:
        return None
    state = with_phase(state, replace(phase, asked=asked, owing=owing))
    return state, (Send(frozenset(moved)),)


# --------------------------------------------------------------------------------------- the seal


def with_full(state: RoundState) -> RoundState:
    """With the moment since when everything is reduced and held by enough."""
    assert isinstance(state.phase, Reduce)
    phase = state.phase
    is_full = len(phase.buckets) == len(state.terms.buckets) and not phase.thin
    if is_full == (phase.full_at is not None):
        return state
    return with_phase(state, replace(phase, full_at=state.at if is_full else None))


def may_seal(state: RoundState) -> bool:
    """Whether everything is held by enough, and nobody is waited for any more."""
    assert isinstance(state.phase, Reduce)
    phase = state.phase
    if phase.full_at is None:
        return False
    hold_ends = UnixMillis(phase.full_at + state.terms.hold_ms)
    if passed(state, hold_ends) or passed(state, phase.ends):
        return True
    return not any(_is_waited_for(state, peer) for peer in phase.waiting)


def _is_waited_for(state: RoundState, peer: PeerId) -> bool:
    return not has_failed(state.holding, state.members[peer].owner, state.round)


def owners_that_missed(state: RoundState) -> set[Address]:
    """Whose members a seal was waited for in vain."""
    assert isinstance(state.phase, Reduce)
    missed = (peer for peer in state.phase.waiting if _is_waited_for(state, peer))
    return {state.members[peer].owner for peer in missed}
