"""Attacks of members on a round of local steps: what each costs the others, and its owner."""

import pytest

from contracts.governance.gates import Gates, PeerStep, gate, remember
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from tests.support.history import make_digest, make_spec
from tests.support.local_jobs import of_local_steps
from tests.support.rounds import Shell, claim_of, joining, name, owner, peer, terms
from training.rounds import events
from training.rounds.events import WorkClaimed
from training.rounds.machine import view
from training.rounds.sealing import MAX_VOIDS
from training.rounds.state import Commit, Reduce, Seal, Work
from training.strategies.local.rules import GROUP, Local
from training.strategies.port import Router

A, B, C, D = peer("a"), peer("b"), peer("c"), peer("d")


def shell_of(*peers: PeerId, of: dict[PeerId, Address] | None = None, rounds: int = 9) -> Shell:
    """A job with one item a peer and round; each peer is its own owner's but where it is said."""
    size = {"units_per_step": len(peers), "peers_per_stage": len(peers), "steps": rounds}
    spec = make_spec(**{**of_local_steps(), **size})
    rules = Local(spec)
    shell = Shell(terms(rules.layout(spec), len(peers)), rules)
    for who in peers:
        shell.tell(joining(who, of=(of or {}).get(who)))
    return shell


def work_and_claim(shell: Shell, workers: tuple[PeerId, ...], *claimers: PeerId) -> None:
    """Each does one item of the round, the work ends in its time, and some claim theirs."""
    assert isinstance(shell.state.phase, Work)
    open = shell.state.phase.open
    items = sorted(open.issued.difference(open.counted[GROUP]))
    for who, item in zip(workers, items, strict=False):
        shell.work(who, item)
    if isinstance(shell.state.phase, Work):
        shell.pass_time(shell.now + shell.terms.round_ms)
    shell.claim(*claimers)


def deliver(shell: Shell, *but: PeerId) -> None:
    """Who is to hold shards holds them, but for those that these peers made."""
    assert isinstance(shell.state.phase, Commit)
    claims = shell.state.phase.open.claims.values()
    withheld = {each.digest for claim in claims if claim.peer in but for each in claim.outputs}
    for who, shards in [*shell.state.phase.lacking.items()]:
        shell.tell(events.Held(who, shards - withheld, shell.now))


def merged(shell: Shell) -> set[PeerId]:
    """Whose claims the round merges."""
    assert isinstance(shell.state.phase, Reduce)
    open, closed = shell.state.phase.open, shell.state.phase.closed
    return {open.claims[each].peer for each in closed.weights}


def seal(shell: Shell) -> None:
    """All that is left of a round."""
    assert isinstance(shell.state.phase, Reduce)
    shell.reduce(*sorted(shell.state.phase.owing))
    shell.hold(*shell.state.members)
    shell.store_seal()
    shell.apply(*shell.state.members)


def is_off(shell: Shell, who: PeerId) -> bool:
    """Whether a peer gets no items of the round."""
    assert shell.state.open is not None
    return who in shell.state.open.off


# -------------------------------------------------------------------------------------------- items


def test_claim__of_items_that_nobody_did_or_another_did__is_passed_over() -> None:
    shell = shell_of(A, B, C)
    work_and_claim(shell, (A, B, C), B)
    before = shell.state

    for items in ([0, 7], [0, 1], [1], [2]):
        shell.tell(WorkClaimed(claim_of(A, 0, items, shape=shell.terms.layout), shell.now))

    assert shell.state == before


def test_claim__of_an_item_that_an_earlier_claim_of_the_peer_has__is_passed_over() -> None:
    shell = shell_of(A, B, C)
    work_and_claim(shell, (A, B, C), A)
    again = claim_of(A, 0, [0], seq=1, shape=shell.terms.layout)
    before = shell.state

    shell.tell(WorkClaimed(again, shell.now))

    assert shell.state == before


# ------------------------------------------------------------------------------- silence, lateness


def test_round__one_never_ends_its_item__costs_the_others_the_time_of_a_round() -> None:
    shell = shell_of(A, B, C)
    began = shell.now
    work_and_claim(shell, (B, C), B, C)
    deliver(shell)

    assert merged(shell) == {B, C}
    assert shell.now - began == shell.terms.round_ms


def test_round__one_does_its_items_and_never_claims__costs_one_time_of_claims_then_it_rests() -> (
    None
):
    shell, rests = shell_of(A, B, C, rounds=20), []
    for _ in range(1, 9):
        rests.append(is_off(shell, A))
        workers = (B, C) if rests[-1] else (B, C, A)
        began = shell.now
        work_and_claim(shell, workers, B, C)
        if not rests[-1]:
            shell.pass_time(shell.now + shell.terms.commit_ms)
        deliver(shell)
        assert merged(shell) == {B, C}
        assert shell.now - began <= shell.terms.round_ms + shell.terms.commit_ms
        seal(shell)
    assert rests == [False, True, True, False, True, True, True, True]


def test_round__shards_that_nobody_can_have_or_read__others_are_merged_then_their_maker_rests() -> (
    None
):
    shell = shell_of(A, B, C)
    work_and_claim(shell, (A, B, C), A, B, C)
    deliver(shell, A)
    shell.pass_time(shell.now + shell.terms.deliver_ms)

    assert merged(shell) == {B, C}
    seal(shell)
    assert is_off(shell, A) and not is_off(shell, B)


def test_claim__after_its_time__is_in_no_round() -> None:
    shell = shell_of(A, B, C)
    work_and_claim(shell, (A, B, C), B, C)
    shell.pass_time(shell.now + shell.terms.commit_ms)
    late = WorkClaimed(claim_of(A, 0, [0], shape=shell.terms.layout), shell.now)

    shell.tell(late)
    deliver(shell)
    assert merged(shell) == {B, C}
    shell.tell(late)
    seal(shell)
    before = shell.state
    shell.tell(late)

    assert shell.state == before
    assert ItemNumber(0) in before.cursor.issue(3)  # somebody does it later


# -------------------------------------------------------------------------------------------- bases


def test_bases__one_of_an_owner_names_a_false_one_and_another_never_claims__is_not_merged() -> None:
    """A RoundClosed over two bases could never be sealed: the job would stand still for good."""
    shell = shell_of(A, B, C, D, of={D: owner("a")})
    work_and_claim(shell, (A, B, C, D), B, C)
    lie = claim_of(A, 0, [0], base=name("false"), shape=shell.terms.layout)
    shell.tell(WorkClaimed(lie, shell.now))
    while not isinstance(shell.state.phase, Reduce):
        shell.pass_time(shell.now + shell.terms.commit_ms)
        if isinstance(shell.state.phase, Commit):
            deliver(shell)

    assert merged(shell) == {B, C}
    assert shell.now < 1000 + 2 * (shell.terms.round_ms + shell.terms.commit_ms)


# ------------------------------------------------------------------------------- owners and quorum


def test_quorum__all_items_of_a_round_by_peers_of_one_owner__void() -> None:
    one = dict.fromkeys((A, B, C), owner("a"))
    shell = shell_of(A, B, C, of=one)
    work_and_claim(shell, (A, B, C), A, B, C)
    deliver(shell)
    assert isinstance(shell.state.phase, Commit)
    shell.pass_time(shell.now + 2 * shell.terms.deliver_ms)

    assert isinstance(shell.state.phase, Seal) and shell.state.phase.what == "void"


def test_quorum__one_of_two_owners_never_claims__void_and_paused_as_nobody_else_is_there() -> None:
    shell = shell_of(A, B)
    for _ in range(3):
        assert not is_off(shell, A)
        work_and_claim(shell, (A, B), *(who for who in [B] if not pending(shell, B)))
        while not isinstance(shell.state.phase, Seal):
            shell.pass_time(shell.now + shell.terms.commit_ms)
            if isinstance(shell.state.phase, Commit):
                deliver(shell)
        assert shell.state.phase.what == "void"
        shell.store_seal()
        shell.apply(A, B)

    assert shell.state.paused and pending(shell, B)  # what it did is merged, and paid, once


def pending(shell: Shell, who: PeerId) -> bool:
    """Whether a claim of a peer waits to be merged."""
    assert shell.state.open is not None
    return any(claim.peer == who for claim in shell.state.open.claims.values())


def test_assign__one_owner_with_many_peers_of_low_ids__others_get_items_first() -> None:
    shell = shell_of(A, B, C, of=dict.fromkeys((A, B, C), owner("a")))
    shell.tell(joining(D))
    seen = view(shell.state, shell.now, Router(room=dict.fromkeys((A, B, C, D), 2)))

    dealt = {each.peer: each.items for each in shell.rules.assign(seen)}  # type: ignore[attr-defined]

    assert dealt == {A: (0,), D: (1,), B: (2,)}


# -------------------------------------------------------------------------------------------- norms


@pytest.mark.parametrize("claims", [True, False])
def test_assign__one_has_the_last_item_of_the_job_and_never_ends_or_delivers_it__others_get_it(
    claims: bool,
) -> None:
    """It costs the others void rounds; nobody else may do the item while a claim covers it."""
    shell = shell_of(A, B, C, rounds=1)
    work_and_claim(shell, (A, C), A, C)  # B has an item, and does not end it
    deliver(shell)
    seal(shell)
    assert isinstance(shell.state.phase, Work) and isinstance(shell.rules, Local)
    [item] = shell.state.phase.open.issued
    for number in range(MAX_VOIDS):
        seen = view(shell.state, shell.now, Router(room=dict.fromkeys((A, B, C), 2)))
        dealt = {each.peer for each in shell.rules.assign(seen)}
        if number and dealt:
            break
        assert dealt == (set() if number else {B})
        if claims and number == 0:
            shell.work(B, item)
            shell.claim(B)
            [claim] = shell.state.phase.open.claims.values()
            own = frozenset(each.digest for each in claim.outputs)
            shell.tell(events.Held(B, own, shell.now))  # it says so itself
        while not isinstance(shell.state.phase, Seal):
            shell.pass_time(shell.now + 500)
        assert shell.state.phase.what == "void"
        shell.store_seal()
        shell.apply(A, B, C)

    assert dealt - {B}


def made(who: str, norm: int) -> PeerStep:
    """A claim of an owner."""
    return PeerStep(make_digest(who), StageIndex(GROUP), owner(who), 8, (norm * 10**9,))


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_gate__difference_a_million_times_too_long__moves_no_more_than_three_where_three_are(
    owners: int,
) -> None:
    steps = [made("e", 10**6), *(made(each, 1) for each in "abcd"[: owners - 1])]
    gates = remember(Gates(), [made(each, 1) for each in "ab"])

    for known in (Gates(), gates):
        weights = gate(known, StepNumber(1), steps, norms_grow=True).weights
        pull = weights[steps[0].name] * 10**6 / weights[steps[1].name]
        assert pull <= 3 if owners >= 3 else pull == 10**6  # open: replays and elements alone
