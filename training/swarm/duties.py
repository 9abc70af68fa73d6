"""What is owed to whom in a state: the next call to each member, the units to route. Pure.

Parts go to the summing peer of their chunk, and a summing peer's own also to its deputy: no part
has one holder, as each owner keeps what it sends. A peer that denied a part that the coordinator
checked and relayed to it sums nothing more in this step; the part's sender stays.

A shell never remembers what it still has to send: it asks here, calls, tells the machine what came
back, and asks again. So a restart, a lost call or a returned peer needs no code of its own.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from contracts.terms.chunks import Chunk
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import AverageSet, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.dealing import Summing, summing_orders
from training.swarm.remembering import last_answer
from training.swarm.securing import chunks_unheld, moments_to_seal
from training.swarm.state import (
    LONG_AGO,
    Averaging,
    Closed,
    Committed,
    Draft,
    Finished,
    Member,
    Part,
    Place,
    Remembered,
    SwarmState,
    Terms,
    Working,
    at_work,
    has_failed,
    here_by_stage,
)

_NONE: frozenset[Part] = frozenset()


@dataclass(frozen=True)
class ApplySeal:
    """Hand over the seal of `step` with everything under it."""

    step: StepNumber


@dataclass(frozen=True)
class Commit:
    """Ask for the GradCommits under this StepClose."""

    close: StepClose


@dataclass(frozen=True)
class FetchParts:
    """Ask it to hold these parts of the named GradCommits' gradients."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class SumChunks:
    """Ask for the averaged chunks of this AverageSet."""

    average: AverageSet
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class HoldChunks:
    """Ask it to hold these averaged chunks, before a seal names them."""

    average: AverageSet
    chunks: tuple[Chunk, ...]


Duty: TypeAlias = ApplySeal | Commit | FetchParts | SumChunks | HoldChunks


def duties_of(state: SwarmState) -> Mapping[PeerId, Duty]:
    """The next thing that the coordinator asks of each member, if there is any."""
    newest, owed = _newest_seal(state), _owed_in_step(state)
    duties: dict[PeerId, Duty] = {}
    for peer, member in state.members.items():
        if not member.is_here:
            continue
        if member.applied < newest:
            duties[peer] = ApplySeal(StepNumber(member.applied + 1))
        elif peer in owed:
            duties[peer] = owed[peer]
    return duties


def _owed_in_step(state: SwarmState) -> Mapping[PeerId, Duty]:
    """What is owed to each member that has applied every seal."""
    match state.phase:
        case Closed(draft) as phase:
            commit, members = Commit(phase.close), state.members
            return {
                peer: commit
                for stage, peer in draft.owing
                if peer in members and members[peer].stage == stage
            }
        case Committed():
            return {peer: FetchParts(parts) for peer, parts in parts_lacking(state).items()}
        case Averaging(average=average) as averaging:
            missing = _chunks_missing(state, averaging).items()
            sums = {peer: SumChunks(average, tuple(chunks)) for peer, chunks in missing}
            unheld = chunks_unheld(state, averaging).items()
            return {peer: HoldChunks(average, chunks) for peer, chunks in unheld} | sums
    return {}


def _chunks_missing(state: SwarmState, phase: Averaging) -> Mapping[PeerId, Sequence[Chunk]]:
    """What each summing peer has not averaged yet, ascending."""
    missing: defaultdict[PeerId, list[Chunk]] = defaultdict(list)
    for chunk, peer in summing_peers(state, phase.draft).items():
        if chunk not in phase.chunks:
            missing[peer].append(chunk)
    return missing


def missing_places(state: SwarmState) -> tuple[Place, ...]:
    """Units that nobody has done yet, ascending; none while no work goes out."""
    if not isinstance(state.phase, Working) or state.is_idle or not state.started:
        return ()
    return _missing(state.terms, state.phase.draft)


@last_answer
def _missing(terms: Terms, draft: Draft) -> tuple[Place, ...]:
    done, struck = draft.done, draft.struck_units
    return tuple(p for p in terms.places if p not in done and p[1] not in struck)


def workers_of(state: SwarmState, stage: StageIndex) -> tuple[Member, ...]:
    """Members that may be given units now: here to stay, up to date, not struck in this step."""
    struck = state.phase.draft.struck if isinstance(state.phase, Working) else frozenset()
    ready = _newest_seal(state)
    return tuple(
        member
        for member in at_work(state, stage)
        if member.applied == ready and not member.leaving and member.peer not in struck
    )


def is_exchanged(state: SwarmState) -> bool:
    """Whether every part is held where it is wanted."""
    return _wanted_in(state) is not None and not parts_lacking(state)


def parts_lacking(state: SwarmState) -> Mapping[PeerId, tuple[Part, ...]]:
    """Which member still has to hold which parts, ascending, before the AverageSet."""
    assert isinstance(state.phase, Committed)
    wanted, held = _wanted_in(state) or {}, state.phase.held
    lacking = ((peer, _lacking(parts, held.get(peer, _NONE))) for peer, parts in wanted.items())
    return {peer: parts for peer, parts in lacking if parts}


@lru_cache(maxsize=2048)
def _lacking(wanted: frozenset[Part], held: frozenset[Part]) -> tuple[Part, ...]:
    """Of one peer: what another one has done leaves it as it was."""
    return tuple(sorted(wanted - held))


def parts_wanted(state: SwarmState) -> frozenset[tuple[PeerId, Part]] | None:
    """Which member must hold which part before the AverageSet; None while a stage has nobody."""
    wanted = _wanted_in(state)
    if wanted is None:
        return None
    return frozenset((peer, part) for peer, parts in wanted.items() for part in parts)


def _wanted_in(state: SwarmState) -> Mapping[PeerId, frozenset[Part]] | None:
    assert isinstance(state.phase, Committed)
    return _wanted(state.terms, state.step, state.members, state.summing, state.phase.draft)


@last_answer
def _wanted(
    terms: Terms,
    step: StepNumber,
    members: Mapping[PeerId, Member],
    failed: Remembered,
    draft: Draft,
) -> Mapping[PeerId, frozenset[Part]] | None:
    """What `parts_wanted` says, by member.

    The summing peer of a chunk holds that part of every GradCommit of its stage, its deputy holds
    the summing peer's own: no part has one holder, as each owner keeps what it sends. Of a chunk
    that two stages share, the summing peer also holds the parts of the other stage.
    """
    wanted: defaultdict[PeerId, set[Part]] = defaultdict(set)
    names: defaultdict[StageIndex, list[tuple[PeerId, Digest]]] = defaultdict(list)
    for commit, _ in draft.commits:
        names[commit.stage].append((commit.peer, commit.digest()))
    for chunk, keepers in _keepers(terms, step, members, failed, draft):
        if not keepers:
            return None
        summing, *deputies = keepers
        for peer, name in (each for s in terms.chunking.stages_of(chunk) for each in names[s]):
            wanted[summing].add((name, chunk[1]))
            if peer == summing:
                for deputy in deputies:
                    wanted[deputy].add((name, chunk[1]))
    return {peer: frozenset(parts) for peer, parts in wanted.items()}


def summing_peers(state: SwarmState, draft: Draft) -> Mapping[Chunk, PeerId]:
    """Who sums each chunk now, where anybody does."""
    keepers = _keepers(state.terms, state.step, state.members, state.summing, draft)
    return {chunk: each[0] for chunk, each in keepers if each}


def all_applied(state: SwarmState) -> StepNumber:
    """The newest step whose seal every member has applied: chunks of later ones are wanted."""
    return min((m.applied for m in state.members.values()), default=_newest_seal(state))


def next_deadline(state: SwarmState, after: UnixMillis = LONG_AGO) -> UnixMillis | None:
    """When a `Ticked` can change something next; None while nothing waits for time.

    `after`: the moment of the last `Ticked`, which did whatever was due then. What was due and did
    not happen, as nobody is left to take over the work of one who is lost, is not due again.
    """
    if isinstance(state.phase, Finished):
        return None
    away = [m.lost_at for m in state.members.values() if m.lost_at is not None]
    moments = [UnixMillis(since + state.terms.lease_grace) for since in away]
    moments += [m.leaves_by for m in state.members.values() if m.leaves_by is not None]
    moments += [at for at in work_given_away_at(state).values() if at > state.at]
    if isinstance(state.phase, Averaging):
        moments += moments_to_seal(state, state.phase)
    ends = getattr(state.phase, "ends", None)
    if ends is not None and state.standing_since is None:
        moments.append(ends)
    return min((at for at in moments if at > after), default=None)


def work_given_away_at(state: SwarmState) -> Mapping[PeerId, UnixMillis]:
    """When what a lost member did in a closed step goes to others: it had `redo_after` to return.

    Counted from the StepClose at the earliest, before which nothing waits for it.
    """
    match state.phase:
        case Closed(draft) | Committed(draft):
            closed_at = draft.closes[-1].closed_at
            return {
                member.peer: UnixMillis(max(member.lost_at, closed_at) + state.terms.redo_after)
                for member in state.members.values()
                if member.lost_at is not None
            }
    return {}


def _newest_seal(state: SwarmState) -> StepNumber:
    return state.step if isinstance(state.phase, Finished) else StepNumber(state.step - 1)


@last_answer
def _keepers(
    terms: Terms,
    step: StepNumber,
    members: Mapping[PeerId, Member],
    failed: Remembered,
    draft: Draft,
) -> Sequence[tuple[Chunk, tuple[PeerId, ...]]]:
    """For each chunk its summing peer and its deputy, as far as there are any; stages ascending.

    Chunks are dealt to those who have committed: they stay the same for the rest of the step, and
    whoever cannot sum is passed over.
    """
    return [
        (chunk, keepers)
        for stage in terms.stages
        for chunk, keepers in _keepers_in(
            stage, terms.chunking.summed_in(stage), step, members, failed, draft
        )
    ]


def _keepers_in(
    stage: StageIndex,
    chunks: Sequence[Chunk],
    step: StepNumber,
    members: Mapping[PeerId, Member],
    failed: Remembered,
    draft: Draft,
) -> Iterable[tuple[Chunk, tuple[PeerId, ...]]]:
    able = _able_to_sum(here_by_stage(members).get(stage, ()), step, failed, draft)
    committed = {commit.peer for commit, _ in draft.commits if commit.stage == stage}
    own = sorted((m for m in members.values() if m.stage == stage), key=lambda m: m.peer)
    base = [m for m in own if m.peer in committed] or [m for m in own if m.peer in able]
    dealt = tuple(Summing(m.peer, m.owner, m.bandwidth) for m in base)
    others = sorted(able - {m.peer for m in base})
    orders = summing_orders(dealt, len(chunks)) if dealt else ((),) * len(chunks)
    for chunk, order in zip(chunks, orders, strict=True):
        yield chunk, tuple(islice((peer for peer in (*order, *others) if peer in able), 2))


def _able_to_sum(
    here: Sequence[Member], step: StepNumber, failed: Remembered, draft: Draft
) -> set[PeerId]:
    """Members that are up to date; without those that failed or were struck if others are left."""
    ready = {member.peer for member in here if member.applied == step - 1}
    sound = ready - draft.struck
    resting = {member.peer for member in here if has_failed(failed, member.owner, step)}
    return sound - draft.denied - resting or sound - draft.denied or sound or ready
