"""From a full batch to its seal: who is bound to what, who is too late, what is averaged. Pure.

Whoever a deadline, or a broken link, catches is struck for the step: its work is done again by
others under the next revision, where the stage has others and time is left; else the step ends
without an update. A summing peer that says nothing, or denies what was relayed to it, is replaced;
those whose parts it should have taken stay.

Once the AverageSet is out, nobody is struck any more: a chunk that nobody sums by the deadline,
because who owned a part and who fetched it are both gone, lets the AverageSet lapse.

Invariants: one AverageSet a step, with the weights of the norm gate; nobody is struck for what
another one failed to take.
"""

from collections.abc import Iterable
from dataclasses import replace

from contracts.governance.gates import PeerStep, gate, peer_step, remember
from contracts.terms.ids import Digest, PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.messages import Assignment, AverageMember, AverageSet, GradCommit, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm import events
from training.swarm.duties import parts_lacking, parts_wanted, summing_peers, work_given_away_at
from training.swarm.securing import owners_that_missed
from training.swarm.state import (
    Averaging,
    Closed,
    Committed,
    Draft,
    Part,
    Sealing,
    SwarmState,
    Working,
    at_work,
    with_failing,
)

NEVER = UnixMillis(2**62)
MAX_STRIKES = 2
"""Deadlines that may pass in one step before it ends without an update."""


def is_full(state: SwarmState, draft: Draft) -> bool:
    """Whether every unit that is not struck is done in every stage."""
    num_units = state.terms.units_per_step - len(draft.struck_units)
    return len(draft.done) == num_units * state.terms.num_stages


def close(state: SwarmState, draft: Draft) -> events.Change:
    """The next revision of the StepClose; without an update if every unit is struck."""
    if not draft.done:
        return end_without_update(state, draft)
    commit_ends = UnixMillis(state.at + state.terms.commit_timeout)
    message = StepClose(
        job=state.terms.job,
        step=state.step,
        revision=len(draft.closes),
        assignments=tuple(
            Assignment(stage=stage, peer=peer, units=units)
            for (stage, peer), units in draft.doers.items()
        ),
        closed_at=state.at,
        commit_ends=commit_ends,
        exchange_ends=UnixMillis(commit_ends + state.terms.exchange_timeout),
    )
    draft = replace(draft, closes=(*draft.closes, message))
    return replace(state, phase=Closed(draft, commit_ends)), (events.SendStepClose(message),)


def assigned_units(close: StepClose, stage: StageIndex, peer: PeerId) -> tuple[ItemNumber, ...]:
    """Units that a StepClose counts as the work of `peer` in `stage`, ascending."""
    for each in close.assignments:
        if (each.stage, each.peer) == (stage, peer):
            return each.units
    return ()


def take_commit(state: SwarmState, event: events.GradCommitted) -> SwarmState:
    """A GradCommit that fits; one that comes while others' units are done again counts too."""
    match state.phase:
        case Working(draft) | Closed(draft) as phase if event.commit.step == state.step:
            if _fits(draft, event):
                commits = (*draft.commits, (event.commit, event.units))
                return replace(state, phase=replace(phase, draft=replace(draft, commits=commits)))
    return state


def _fits(draft: Draft, event: events.GradCommitted) -> bool:
    """It is what a StepClose of this step gave it, and still its own."""
    commit, units = event.commit, set(event.units)
    named = [each for each in draft.closes if each.digest() == commit.step_close]
    if not named or not units or commit.peer in draft.struck:
        return False
    own = draft.committed(commit.stage, commit.peer)
    copies = [draft.done.get((commit.stage, unit)) for unit in units]
    rounds = [other.round for other, _ in draft.commits if other.peer == commit.peer]
    return (
        units == set(assigned_units(named[0], commit.stage, commit.peer)) - own
        and all(copy is not None and copy.peer == commit.peer for copy in copies)
        and all(commit.round > earlier for earlier in rounds)
    )


def differing(state: SwarmState, draft: Draft) -> set[PeerId]:
    """Peers that computed in another state than most owners of their stage did.

    Most owners, not peers, so that one wallet cannot outvote a stage; of two states with equally
    many the one with more units, then the lower root.
    """
    odd: set[PeerId] = set()
    for stage in state.terms.stages:
        commits = [commit for commit, _ in draft.commits if commit.stage == stage]
        roots = {commit.state_root for commit in commits}
        if len(roots) > 1:
            chosen = max(sorted(roots), key=lambda root: _support(state, commits, root))
            odd |= {commit.peer for commit in commits if commit.state_root != chosen}
    return odd


def _support(state: SwarmState, commits: Iterable[GradCommit], root: Digest) -> tuple[int, int]:
    own = [commit for commit in commits if commit.state_root == root]
    owners = {state.owners[commit.peer] for commit in own}
    return len(owners), sum(commit.num_units for commit in own)


def uncommitted(draft: Draft) -> set[PeerId]:
    """Peers that the newest StepClose gives units to which they are not bound yet."""
    return {peer for _, peer in draft.owing}


def strike(state: SwarmState, draft: Draft, late: Iterable[PeerId]) -> events.Change:
    """A deadline passed for the late ones: their work goes to others, but not for ever."""
    return leave_out(state, replace(draft, strikes=draft.strikes + 1), late)


def leave_out(state: SwarmState, draft: Draft, peers: Iterable[PeerId]) -> events.Change:
    """Let others do again what these did, or end the step where nobody can."""
    out = {*peers}
    places = tuple(sorted(place for place, copy in draft.done.items() if copy.peer in out))
    draft = replace(
        draft,
        done={place: copy for place, copy in draft.done.items() if copy.peer not in out},
        commits=tuple(each for each in draft.commits if each[0].peer not in out),
        struck=draft.struck | out,
    )
    stages = {stage for stage, _ in places}
    if draft.strikes > MAX_STRIKES or not all(_can_redo(state, draft, each) for each in stages):
        return end_without_update(state, draft)
    ends = UnixMillis(state.at + state.terms.commit_timeout)
    return replace(state, phase=Working(draft, ends)), (events.Redo(places),)


def _can_redo(state: SwarmState, draft: Draft, stage: StageIndex) -> bool:
    return any(
        member.peer not in draft.struck and not member.leaving for member in at_work(state, stage)
    )


def given_away(state: SwarmState, peers: Iterable[PeerId]) -> set[PeerId]:
    """Those of `peers` that are lost for long enough for others to do their work."""
    due = work_given_away_at(state)
    return {p for p in peers if p not in state.members or due.get(p, NEVER) <= state.at}


def replaceable(state: SwarmState, draft: Draft, away: set[PeerId]) -> set[PeerId]:
    """All that are `away`, if others can do all that they did; else nobody.

    With them goes who else is away and has done something: the tensors between their units would
    have to come from them. So a site that falls silent is replaced at once, and no unit is torn.
    """
    if not away:
        return away
    doers = {copy.peer for copy in draft.done.values()}
    away = away | {peer for peer in doers if not _is_here(state, peer)}
    stages = {stage for (stage, _), copy in draft.done.items() if copy.peer in away}
    without = replace(draft, struck=draft.struck | away)
    can = state.standing_since is None and all(_can_redo(state, without, s) for s in stages)
    return away if can else set()


def unserved_by_lost(state: SwarmState, phase: Committed) -> set[PeerId]:
    """Who is lost for long enough, and has a part that is wanted and that nobody else holds."""
    away = given_away(state, {commit.peer for commit, _ in phase.draft.commits})
    if not away:
        return away
    owner_of = _owner_of(phase.draft)
    lacking = {part for parts in parts_lacking(state).values() for part in parts}
    wanted = {part for part in lacking if owner_of[part[0]] in away}
    return {owner_of[part[0]] for part in wanted - _served(phase)} if wanted else set()


def _owner_of(draft: Draft) -> dict[Digest, PeerId]:
    return {commit.digest(): commit.peer for commit, _ in draft.commits}


def _served(phase: Committed) -> set[Part]:
    """Parts that somebody else than their owner holds."""
    owner_of = _owner_of(phase.draft)
    held = phase.held.items()
    return {part for peer, parts in held for part in parts if owner_of.get(part[0]) != peer}


def begin_exchange(state: SwarmState, phase: Closed) -> events.Change:
    """Every GradCommit is in."""
    ends = UnixMillis(phase.ends + state.terms.exchange_timeout)
    return replace(state, phase=Committed(phase.draft, {}, ends)), ()


def exchange_is_late(state: SwarmState, phase: Committed) -> events.Change:
    """The deadline of the exchange passed: strike owners, or replace summing peers.

    What anybody but its owner holds was served: who still lacks it, or has not answered at all, is
    replaced. What nobody else holds though its summing peer did answer was not served.
    """
    draft, owner_of = phase.draft, _owner_of(phase.draft)
    heard, served = phase.held.keys(), _served(phase)
    wanted = parts_wanted(state) or frozenset()
    missing = {(peer, part) for peer, part in wanted if part not in phase.held.get(peer, ())}
    lacking = {(peer, part) for peer, part in missing if part not in served}
    away = {owner_of[name] for _, (name, _) in lacking if not _is_here(state, owner_of[name])}
    late = away or {owner_of[name] for peer, (name, _) in lacking if peer in heard}
    deaf = {peer for peer, part in missing if part in served or peer not in heard} - draft.denied
    if not late and deaf and draft.strikes < MAX_STRIKES:
        draft = replace(draft, denied=draft.denied | deaf, strikes=draft.strikes + 1)
        ends = UnixMillis(state.at + state.terms.exchange_timeout)
        return replace(state, phase=replace(phase, draft=draft, ends=ends)), ()
    return strike(state, draft, late or {owner_of[name] for _, (name, _) in missing})


def _is_here(state: SwarmState, peer: PeerId) -> bool:
    return peer in state.members and state.members[peer].is_here


def deny_parts(state: SwarmState, event: events.PartsDenied) -> SwarmState:
    """A summing peer is replaced; the next one has a whole time-out to fetch what it needs."""
    match state.phase:
        case Committed(draft) | Averaging(draft) as phase if (
            event.step == state.step
            and event.peer in state.members
            and event.peer not in draft.denied
        ):
            if isinstance(phase, Averaging):
                owes = {peer for name, peer in phase.dealt.items() if name not in phase.chunks}
                return deny_sums(state, event.peer, is_blamed=event.peer in owes)
            ends = UnixMillis(max(phase.ends, event.at + state.terms.exchange_timeout))
            draft = replace(draft, denied=draft.denied | {event.peer})
            return replace(state, phase=replace(phase, draft=draft, ends=ends))
    return state


def deny_sums(state: SwarmState, peer: PeerId, *, is_blamed: bool) -> SwarmState:
    """A member sums nothing more in this step; if it is blamed, for a while nothing others can.

    To blame is who signed what nobody could have, or did not sum what was dealt to it, as it has
    every part of that. Whoever is asked in its place may lack what two others keep to themselves.
    """
    assert isinstance(state.phase, Averaging)
    draft = state.phase.draft
    phase = replace(state.phase, draft=replace(draft, denied=draft.denied | {peer}))
    if not is_blamed or peer not in state.owners:
        return replace(state, phase=phase)
    owner, known = state.owners[peer], state.summing
    phase = replace(phase, is_telling=phase.is_telling or owner not in state.blamed)
    summing = with_failing(known, [owner], state.step)
    return replace(state, summing=summing, blamed=state.blamed | {owner}, phase=phase)


def average(state: SwarmState, draft: Draft) -> events.Change:
    """Every part is where it is wanted: what the sums are made of, and how much each weighs."""
    weights = gate(state.gates, state.step, _peer_steps(state, draft)).weights
    message = _average_set(
        state,
        draft,
        tuple(
            AverageMember(grad_commit=name, weight=weight)
            for name, weight in sorted(weights.items())
        ),
    )
    dealt = summing_peers(state, draft)
    ends = UnixMillis(state.at + state.terms.exchange_timeout)
    return replace(state, phase=Averaging(draft, message, ends, dealt)), (
        events.SendAverageSet(message),
    )


def _peer_steps(state: SwarmState, draft: Draft) -> list[PeerStep]:
    return [peer_step(commit, state.owners[commit.peer]) for commit, _ in draft.commits]


def _average_set(state: SwarmState, draft: Draft, members: tuple[AverageMember, ...]) -> AverageSet:
    return AverageSet(
        job=state.terms.job,
        step=state.step,
        step_close=draft.closes[-1].digest(),
        members=members,
    )


def end_with_update(state: SwarmState, phase: Averaging) -> events.Change:
    """Every chunk is averaged, and held."""
    gates = remember(state.gates, _peer_steps(state, phase.draft))
    missed = owners_that_missed(state, phase)
    state = replace(state, holding=with_failing(state.holding, missed, state.step))
    kept = events.KeepChunks(tuple(phase.chunks[name] for name in sorted(phase.chunks)))
    state, effects = _seal(replace(state, gates=gates), has_update=True)
    return state, (kept, *effects)


def end_without_update(state: SwarmState, draft: Draft) -> events.Change:
    """Lost work cannot be done again in time; an AverageSet without members says so."""
    nobody = (events.SendAverageSet(_average_set(state, draft, ())),) if draft.closes else ()
    state, effects = _seal(state, has_update=False, is_barren=True)
    return state, (*nobody, events.EndedWithoutUpdate(state.step), *effects)


def lapse(state: SwarmState) -> events.Change:
    """A chunk that nobody could sum in time: the AverageSet stands, and nothing follows from it."""
    assert isinstance(state.phase, Averaging)
    state, effects = _seal(state, has_update=False, is_barren=not state.phase.is_telling)
    return state, (events.EndedWithoutUpdate(state.step), *effects)


def end_empty(state: SwarmState) -> events.Change:
    """A step without work: what was said counts, or the job ends."""
    return _seal(state, has_update=False, is_empty=True)


def _seal(
    state: SwarmState, *, has_update: bool, is_empty: bool = False, is_barren: bool = False
) -> events.Change:
    state = replace(state, phase=Sealing(has_update, is_empty, is_barren))
    return state, (events.BuildSeal(state.step, last=is_last_step(state)),)


def ends_work(state: SwarmState) -> bool:
    """Whether no step after this one has work."""
    return state.draining or state.stopping or state.step - state.idle >= state.terms.num_steps


def is_last_step(state: SwarmState) -> bool:
    """Whether the seal that is due ends the job; of a checked one only if no draw is left open."""
    if not state.terms.is_checked:
        return ends_work(state)
    is_empty = isinstance(state.phase, Sealing) and state.phase.is_empty
    return is_empty and state.draining and state.is_clear and not state.to_seal
