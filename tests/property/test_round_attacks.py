"""Attacks on a round that were tried: what a member gains by lacking, leaving or naming a base."""

from dataclasses import replace
from pathlib import Path

import pytest

from contracts.terms.errors import Malformed, Unavailable
from contracts.terms.ids import PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.work import Output, WorkClaim, tensor_name
from tests.support.history import make_digest
from tests.support.rounds import (
    Shell,
    claim_of,
    joining,
    layout,
    name,
    peer,
    terms,
)
from training.coordinator import blobs
from training.coordinator.acceptance import need_own_bytes
from training.rounds import events, owed
from training.rounds.state import COORDINATOR, NO_BYTES, Commit, Reduce, Seal, Work
from training.strategies.every_step.passes import Way, check_answer, next_call
from training.strategies.port import Result

A, B, C = peer("a"), peer("b"), peer("c")


def shell_of_two(rounds: int = 3) -> Shell:
    """A job of one group in which two have joined."""
    shell = Shell(terms(layout(rounds=rounds), 2))
    for each in (A, B):
        shell.tell(joining(each))
    return shell


def test_check_answer__given_without_a_neighbour_that_used_it__refused() -> None:
    way = Way(ItemNumber(3), 1)
    call = next_call(way)
    assert call is not None and not call.used
    tensors = (("rows/0/3", make_digest("rows")),)
    check_answer(way, call, Result(call.group, way.item, A, tensors, loss=5))
    with pytest.raises(Malformed, match="given"):
        check_answer(way, call, Result(call.group, way.item, A, tensors, loss=5, given=True))


def test_items_lost__by_the_same_member_at_every_commit__others_do_them_and_the_round_goes_on() -> (
    None
):
    shell = shell_of_two()
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    for _ in range(2):
        asked = owed.owed(shell.state, A)
        assert isinstance(asked, owed.AskClaim)
        shell.tell(events.ItemsLost(A, tuple(asked.items), shell.now))
        assert isinstance(shell.state.phase, Work)
        shell.work(A, 0, 1)  # it is dealt them again, and says that it has made them
    shell.work(B, 0, 1)
    assert isinstance(shell.state.phase, Commit)
    assert A in shell.state.phase.open.off
    shell.claim(B)
    while isinstance(owed.owed(shell.state, B), owed.AskClaim):
        shell.claim(B)
    shell.deliver(COORDINATOR)
    assert isinstance(shell.state.phase, Reduce)


def test_round__owner_hands_in_results_and_never_claims__rests_while_there_is_another() -> None:
    shell, rests = shell_of_two(rounds=9), []
    for round in range(1, 9):
        assert isinstance(shell.state.phase, Work)
        is_off = A in shell.state.phase.open.off
        rests.append(is_off)
        items = sorted(shell.state.phase.open.issued)
        if not is_off:
            shell.work(A, *items[:2])
        shell.work(B, *(items if is_off else items[2:]))
        shell.claim(B)
        if not is_off:
            shell.pass_time(shell.now + shell.terms.commit_ms)
            shell.work(B, *items[:2])
            shell.claim(B)
        shell.deliver(*(who for who in (A, B) if lacks(shell, who)))
        shell.reduce(B)
        shell.hold(A)
        shell.store_seal()
        shell.apply(A, B)
        assert shell.state.updates == round
    assert rests == [False, True, True, False, True, True, True, True]


def lacks(shell: Shell, who: PeerId) -> bool:
    """Whether a member is to fetch shards."""
    return isinstance(shell.state.phase, Commit) and who in shell.state.phase.lacking


def test_joined__its_owner_has_just_failed_to_claim__rests_under_another_lease_too() -> None:
    shell = shell_of_two()
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    shell.claim(B)
    shell.pass_time(shell.now + shell.terms.commit_ms)
    shell.tell(joining(C, of=shell.state.owners[A], at=shell.now))
    assert isinstance(shell.state.phase, Work)
    assert shell.state.phase.open.off == {A, C}


def test_void_round__member_that_has_claimed_left_in_it__its_claim_is_not_handed_on() -> None:
    shell = Shell(replace(terms(layout(), 2), lease_grace=600))
    for each in (A, B):
        shell.tell(joining(each))
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    shell.claim(A, B)
    shell.deliver(A, B)
    assert isinstance(shell.state.phase, Reduce)
    shell.tell(events.Disconnected(A, shell.now))
    shell.pass_time(shell.now + 2 * shell.terms.reduce_ms)  # and B reduces nothing
    assert A not in shell.state.members
    shell.store_seal()
    assert isinstance(shell.state.phase, Work)
    handed_on = shell.state.phase.open
    assert {claim.peer for claim in handed_on.claims.values()} == {B}
    assert {*handed_on.counted[StageIndex(0)]} == {ItemNumber(2), ItemNumber(3)}


def test_differing_bases__two_owners__neither_is_believed_and_the_round_is_void() -> None:
    shell = shell_of_two()
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    true, false = name("base", 0), min(make_digest("false", each) for each in range(64))
    shell.claim(A)
    lie = claim_of(B, 0, (2, 3), base=false, shape=shell.terms.layout)
    assert false < true
    shell.tell(events.WorkClaimed(lie, shell.now))
    assert isinstance(shell.state.phase, Seal)
    assert shell.state.phase.what == "void" and not shell.state.phase.open.claims
    shell.store_seal()
    assert isinstance(shell.state.phase, Work)
    assert not shell.state.phase.open.off  # nobody else is there, so nobody rests


def test_need_own_bytes__digest_of_another_under_another_bucket_or_norm__refused() -> None:
    """Else one copied digest that nobody can deliver takes the claim down that it is copied of."""
    honest = claim_of(A, 0, (0, 1))
    first, second = honest.outputs

    def copying(*outputs: Output) -> WorkClaim:
        return claim_of(B, 0, (2, 3)).model_copy(update={"outputs": outputs})

    own = claim_of(B, 0, (2, 3)).outputs
    need_own_bytes(copying(*own), [honest])
    longer = first.model_copy(update={"norm_squared": 2})
    moved = second.model_copy(update={"bucket": first.bucket})
    for output in (longer, moved):
        with pytest.raises(Malformed, match="another"):
            need_own_bytes(copying(output, own[1]), [honest])


def test_rows__last_group_names_false_ones__honest_first_group_can_complete_the_item() -> None:
    shell = Shell(terms(layout(2, items=1), 1))
    shell.tell(joining(A, 0))
    shell.tell(joining(B, 1))

    def made(who: PeerId, group: int, rows: str) -> events.ItemsDone:
        tensors = ((tensor_name("rows", group, ItemNumber(0)), make_digest(rows)),)
        result = Result(StageIndex(group), ItemNumber(0), who, tensors)
        return events.ItemsDone(who, (result,), shell.now)

    shell.tell(made(B, 1, "false"))  # the last group counts first: its pass is both
    shell.tell(made(A, 0, "of the manifest"))
    assert isinstance(shell.state.phase, Commit)


def test_kept_file__full_of_what_a_member_never_applies__older_rounds_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MOST_BYTES", 100)
    file = blobs.KeptFile(tmp_path / "kept.sqlite")
    old, late, new, much = (make_digest(each) for each in ("old", "late", "new", "much"))
    file.put(1, late, bytes(20), lambda: {late})
    file.put(1, old, bytes(60), set)
    file.put(2, new, bytes(60), lambda: {late})
    with pytest.raises(Unavailable):
        file.put(2, much, bytes(60), lambda: {late})
    assert [file.find(each) for each in (old, late, new)] == [None, bytes(20), bytes(60)]
    with pytest.raises(Unavailable):  # of earlier rounds no more than half
        file.put(2, much, bytes(10), lambda: {late, much})
    file.close()


def test_void_round_of_a_checked_job__what_it_hands_on_waits_for_what_its_seal_allows() -> None:
    """It is claimed already; closed at once, it could be one round too many that is undrawn."""
    shell = Shell(terms(layout(rounds=9), 2, is_checked=True))
    for each in (A, B):
        shell.tell(joining(each))
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    shell.claim(A, B)
    assert isinstance(shell.state.phase, Commit)
    shell.deliver(*shell.state.phase.lacking)
    shell.pass_time(shell.now + 2 * shell.terms.reduce_ms)
    assert shell.seal_due == (1, "void", False)

    shell.store_seal()

    assert isinstance(shell.state.phase, Work) and shell.state.phase.open.claims
    shell.tell(events.Checked(None, True, False, NO_BYTES, False, (), shell.now))
    assert not isinstance(shell.state.phase, Work)
