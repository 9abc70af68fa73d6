"""From a full batch to RoundClosed: who claims what, and which shards are delivered. Pure.

First every peer claims what counts as its work, until `commit_ms` are over; then what it claimed is
delivered, until `deliver_ms` are. A shard is delivered when the reducer of its bucket has it, and a
member of another owner than its maker's, wherever the group has another owner: evidence that only
the accused holds is none. The coordinator's copy is delivery to everybody. It is asked to keep at
once what members that are away are to hold, and at half of `deliver_ms` all that is still missing.
So no reducer can exclude anybody by denial. Where late claims are merged, the next round asks on
for what was claimed in time and is not delivered, and does not wait for it. A claim is lost when
only its peer has what it claimed and is away too long, and others can do the work again.

A claim that is missing or not delivered when its time is over expires; its items are opened again,
other claims stay. Its peer is at fault if it is connected (`working.blame`). RoundClosed is signed
once, over what is delivered then.

Invariants: what RoundClosed names is delivered, of peers that may work, and of one base in a group,
late claims of the one before.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from contracts.governance.gates import PeerStep, gate, peer_step
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId
from contracts.terms.items import Ranges, ranges_of
from contracts.terms.moments import UnixMillis
from contracts.terms.work import MAX_SEQ, RoundClosed, WorkClaim
from training.rounds.dealing import Ring, deal
from training.rounds.events import (
    Change,
    Effect,
    Held,
    KeepBytes,
    Send,
    SignRoundClosed,
    WorkClaimed,
)
from training.rounds.membership import is_due, passed
from training.rounds.state import (
    COORDINATOR,
    NO_BYTES,
    NOTHING,
    Commit,
    OpenRound,
    Reduce,
    RoundState,
    Work,
    with_open,
    with_phase,
)
from training.rounds.working import blame, drop, fail, give_up, has_worker, put_off
from training.strategies.port import Bucket, Group

MAX_COMMITS = MAX_SEQ + 1
"""How often peers are asked for claims in one round."""

Lacking = Mapping[PeerId, frozenset[Digest]]


def begin_commit(state: RoundState) -> Change | None:
    """Ask for claims of everything that is complete; None: they were asked for too often."""
    assert isinstance(state.phase, Work)
    open = state.phase.open
    complete = open.issued.intersection(*open.counted.values())
    if torn := open.issued - complete:
        places = {group: torn.intersection(own) for group, own in open.counted.items()}
        open = replace(drop(state, open, places, torn), issued=complete)
    if open.num_commits == MAX_COMMITS or not complete:
        return None
    open = deal(state, replace(open, num_commits=open.num_commits + 1))
    ends = UnixMillis(state.at + state.terms.commit_ms)
    state = with_phase(state, Commit(open, ends, ends))
    return state, (Send(frozenset(open.unclaimed)),)


# ------------------------------------------------------------------------------------- claims


def take_claim(state: RoundState, event: WorkClaimed) -> Change:
    """A claim of unclaimed work, whether that is asked for now or was earlier in this round."""
    claim = event.claim
    match state.phase:
        case Work(open=open) if open.num_commits:
            pass
        case Commit(open=open, is_delivering=False):
            pass
        case _:
            return state, ()
    own, items = open.unclaimed.get(claim.peer, NOTHING), frozenset(claim.numbers)
    seq = open.seqs.get(claim.peer, 0)
    if claim.round != state.round or not items <= own or claim.seq < seq:
        return state, ()
    unclaimed = {**open.unclaimed, claim.peer: own - items}
    if own == items:
        del unclaimed[claim.peer]
    claims = {**open.claims, claim.digest(): claim}
    seqs = {**open.seqs, claim.peer: claim.seq + 1}
    state = with_open(state, replace(open, unclaimed=unclaimed, claims=claims, seqs=seqs))
    if claim.seq == MAX_SEQ:  # it could claim nothing more
        state = put_off(give_up(state, claim.peer), {claim.peer})
    return state, (Send(frozenset({claim.peer})),)


def differing(state: RoundState, open: OpenRound) -> set[Digest]:
    """Claims from another base than most owners of their group started from; of a tie all.

    Most owners, not peers, so that one wallet cannot outvote a group. Nothing here tells which of
    two bases is right: whoever could decide a tie by what it says would take the other's pay.
    """
    odd: set[Digest] = set()
    for all_of_it in _by_group(open).values():
        own = [claim for claim in all_of_it if not state.is_late(claim)]  # late ones were judged
        votes = Counter(base for base, _ in {(each.base, state.owners[each.peer]) for each in own})
        best = max(votes.values(), default=0)
        chosen = [base for base, number in votes.items() if number == best]
        odd |= {claim.digest() for claim in own if chosen != [claim.base]}
    return odd


def _by_group(open: OpenRound) -> Mapping[Group, list[WorkClaim]]:
    found: defaultdict[Group, list[WorkClaim]] = defaultdict(list)
    for claim in open.claims.values():
        found[claim.group].append(claim)
    return found


# ------------------------------------------------------------------------------------- delivery


def begin_delivery(state: RoundState) -> RoundState:
    """From now on shards are waited for."""
    assert isinstance(state.phase, Commit)
    ends = UnixMillis(state.at + state.terms.deliver_ms)
    return with_lacking(with_phase(state, replace(state.phase, is_delivering=True, ends=ends)))


def with_lacking(state: RoundState) -> RoundState:
    """With who lacks which shards found out anew."""
    match state.phase:
        case Commit(open=open, is_delivering=True) as phase:
            return with_phase(state, replace(phase, lacking=_lacking(state, open)))
    return state


def _lacking(state: RoundState, open: OpenRound) -> Lacking:
    """Shards that are not delivered yet, by who is to hold them."""
    kept = open.held.get(COORDINATOR, NO_BYTES)
    wanted: defaultdict[PeerId, set[Digest]] = defaultdict(set)
    rings = {group: Ring(state, group) for group in state.terms.groups}
    for group, own in _by_group(open).items():
        indices: defaultdict[object, list[int]] = defaultdict(list)  # by peer, and by owner
        for index, claim in enumerate(own):
            indices[claim.peer].append(index)
            indices[state.owners[claim.peer]].append(index)
        columns = zip(*(tuple(out.digest for out in claim.outputs) for claim in own), strict=True)
        for bucket, column in zip(state.terms.layout.outputs[group], columns, strict=True):
            reducer = open.dealing[bucket]
            owner = state.owners[reducer]
            holder = _holder(state, reducer)
            made = {column[index] for index in indices.get(holder, ())}
            wanted[holder].update(set(column) - made)
            if owner in indices and (other := rings[group].other_owner(bucket, owner)):
                shards = {column[index] for index in indices[owner]}
                wanted[other.peer if other.is_here else COORDINATOR].update(shards)
    lacking = (
        (peer, frozenset(shards) - open.held.get(peer, NO_BYTES) - kept)
        for peer, shards in wanted.items()
    )
    return {peer: shards for peer, shards in lacking if shards}


def _holder(state: RoundState, reducer: PeerId) -> PeerId:
    """Who is to have what a reducer needs; of one that is away another could not get it."""
    member = state.members.get(reducer)
    return reducer if member and member.is_here else COORDINATOR


def take_held(open: OpenRound, event: Held) -> OpenRound:
    """With what somebody holds."""
    own = open.held.get(event.holder, NO_BYTES)
    if event.digests <= own:
        return open
    return replace(open, held={**open.held, event.holder: own | event.digests})


def without_delivered(lacking: Lacking, event: Held) -> Lacking:
    """What is still lacking; the coordinator's copy serves everybody."""
    peers = [*lacking] if event.holder == COORDINATOR else [event.holder]
    left = dict(lacking)
    for peer in peers:
        if shards := left.pop(peer, NO_BYTES) - event.digests:
            left[peer] = shards
    return left


def is_waiting(state: RoundState, phase: Commit) -> bool:
    """Whether shards of claims that are not late are lacking."""
    late = {output.digest for name in state.late for output in phase.open.claims[name].outputs}
    return any(not lacking <= late for lacking in phase.lacking.values())


def delivered(phase: Commit) -> frozenset[Digest]:
    """Claims of which no shard is lacking; none before delivery begins."""
    if not phase.is_delivering:
        return NO_BYTES
    if not phase.lacking:
        return frozenset(phase.open.claims)
    lacking = NO_BYTES.union(*phase.lacking.values())
    return frozenset(
        name
        for name, claim in phase.open.claims.items()
        if all(output.digest not in lacking for output in claim.outputs)
    )


def lost_claims(state: RoundState) -> list[Digest]:
    """Claims of peers that are away too long, with shards that nobody else who is here holds."""
    assert isinstance(state.phase, Commit)
    open, members = state.phase.open, state.members
    away = {peer for peer in state.watched if is_due(state, members[peer])}
    late = state.late  # nobody waits for them
    held = [
        own
        for peer, own in open.held.items()
        if peer == COORDINATOR or (peer in members and members[peer].is_here)
    ]
    return [
        name
        for name, claim in open.claims.items()
        if claim.peer in away
        and name not in late
        and not all(any(output.digest in own for own in held) for output in claim.outputs)
        and has_worker(state, open, claim.group)
    ]


def keep_shards(state: RoundState) -> Change | None:
    """Ask the coordinator for shards whose holder is away, or late; None: for none more."""
    assert isinstance(state.phase, Commit)
    phase = state.phase
    half = UnixMillis(phase.ends - state.terms.deliver_ms // 2)
    late = phase.lacking.keys() if passed(state, half) else phase.lacking.keys() & {COORDINATOR}
    wanted = NO_BYTES.union(*(phase.lacking[peer] for peer in late)) - phase.keeping
    if not wanted:
        return None
    state = with_phase(state, replace(phase, keeping=phase.keeping | wanted))
    return state, (with_givers(phase.open, wanted, phase.open.claims.values()),)


def keep_late(state: RoundState) -> tuple[Effect, ...]:
    """While items are worked on: ask the coordinator for what it lacks of late claims."""
    if not isinstance(state.phase, Work) or not state.late:
        return ()
    open = state.phase.open
    claims = [open.claims[name] for name in state.late]
    shards = NO_BYTES.union(output.digest for claim in claims for output in claim.outputs)
    wanted = shards - open.held.get(COORDINATOR, NO_BYTES)
    asked = with_givers(open, wanted, claims).wanted
    # Holders first: their makers' lines are the slow ones.
    return (KeepBytes(tuple((each, givers[::-1]) for each, givers in asked)),) if wanted else ()


def with_givers(
    open: OpenRound, wanted: Collection[Digest], claims: Iterable[WorkClaim]
) -> KeepBytes:
    """Each of these bytes with its makers, by these claims, then with others that hold it."""
    makers: defaultdict[Digest, list[PeerId]] = defaultdict(list)
    for claim in claims:
        for output in claim.outputs:
            if output.digest in wanted:
                makers[output.digest].append(claim.peer)
    found: list[tuple[Digest, tuple[PeerId, ...]]] = []
    for digest in sorted(wanted):
        holders = {peer for peer, own in open.held.items() if digest in own} - {COORDINATOR}
        found.append((digest, (*makers[digest], *sorted(holders.difference(makers[digest])))))
    return KeepBytes(tuple(found))


def reopen(state: RoundState) -> RoundState:
    """The time of claims, or of delivery, is over: what is late is opened again."""
    assert isinstance(state.phase, Commit)
    phase = state.phase
    late = phase.open.unclaimed.keys()
    if phase.is_delivering:
        state = fail(state, phase.open.claims.keys() - delivered(phase))
    for peer in sorted(late):
        state = give_up(state, peer)
    return blame(state, late)


def blame_late(state: RoundState) -> RoundState:
    """Who has not claimed what counts, or not delivered, where a round closes without it.

    Nobody rests for a void round: those who are left were too few to close that one.
    """
    assert isinstance(state.phase, Commit)
    open, done = state.phase.open, delivered(state.phase)
    left = (claim for name, claim in open.claims.items() if name not in done)
    late = {claim.peer for claim in left if not state.is_late(claim)}  # once for a claim
    return blame(state, late | open.unclaimed.keys())


# ------------------------------------------------------------------------------------ RoundClosed


def close_round(state: RoundState) -> Change:
    """Sign what is merged, with which weights, and who reduces what."""
    assert isinstance(state.phase, Commit)
    phase, open = state.phase, state.phase.open
    merged = {name: open.claims[name] for name in delivered(phase)}
    reducers = _reducers(state, open)
    steps = peer_steps(state, merged)
    grow = state.terms.layout.norms_grow
    weights = gate(state.gates, state.round, steps, norms_grow=grow).weights
    message = RoundClosed(
        job=state.terms.job,
        round=state.round,
        bases=tuple(_bases(state, merged.values())),
        claims=tuple(sorted(weights.items())),
        reducers=tuple(reducers[bucket] for bucket in state.terms.buckets),
        given=_given(open),
        opened_at=open.opened_at or state.at,
        commit_ends=phase.commit_ends,
        closed_at=state.at,
    )
    owing: defaultdict[PeerId, set[Bucket]] = defaultdict(set)
    for bucket, peer in reducers.items():
        owing[peer].add(bucket)
    reduce = Reduce(
        open,
        message,
        UnixMillis(state.at + state.terms.reduce_ms),
        asked={bucket: (peer,) for bucket, peer in reducers.items()},
        owing={peer: frozenset(own) for peer, own in owing.items()},
    )
    state = with_phase(state, reduce)
    return state, (SignRoundClosed(message), Send(frozenset(owing)))


def peer_steps(state: RoundState, claims: Mapping[Digest, WorkClaim]) -> list[PeerStep]:
    """What the gate looks at of each claim."""
    num_vectors = state.terms.layout.num_vectors
    return [
        peer_step(claim, state.owners[claim.peer], state.terms.weights.of(claim.items), num_vectors)
        for claim in claims.values()
    ]


def _bases(state: RoundState, merged: Collection[WorkClaim]) -> Sequence[Digest]:
    bases = {claim.group: claim.base for claim in merged if not state.is_late(claim)}
    return [bases.get(group, ZERO_DIGEST) for group in state.terms.groups]


def _reducers(state: RoundState, open: OpenRound) -> dict[Bucket, PeerId]:
    """The dealt ones; instead of who is away the next in the ring, at no cost to anybody."""
    reducers = dict(open.dealing)
    for bucket, peer in open.dealing.items():
        member = state.members.get(peer)
        if member is None or not member.is_here:
            reducers[bucket] = Ring(state, bucket[0]).stand_in(bucket, {peer}) or peer
    return reducers


def _given(open: OpenRound) -> tuple[tuple[Group, Ranges], ...]:
    given = (
        (group, ranges_of(item for item, result in results.items() if result.given))
        for group, results in open.counted.items()
    )
    return tuple((group, ranges) for group, ranges in given if ranges)
