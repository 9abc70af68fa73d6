"""Claims of local steps that are delivered too late: merged by the next round, paid once."""

import pytest

from contracts.terms.ids import PeerId
from contracts.terms.work import WorkClaim
from tests.support.rounds import Shell, peer
from tests.unit.training.rounds.test_local_attacks import (
    deliver,
    is_off,
    merged,
    seal,
    shell_of,
    work_and_claim,
)
from training.rounds.events import Checked, Connected, Controlled, Disconnected, Held
from training.rounds.state import COORDINATOR, NO_BYTES, Commit, Reduce, Work
from training.strategies.local.rules import GROUP

A, B, C, D = peer("a"), peer("b"), peer("c"), peer("d")


def round_without_delivery_of_a(
    shell: Shell, *others: PeerId, but_for: int = 0, and_hold: bool = False
) -> WorkClaim:
    """All work and claim, A's shards do not come, the round is sealed; returns A's claim.

    Args:
        shell: Of the job.
        others: Who delivers.
        but_for: So many of A's shards come.
        and_hold: The poster pauses the job in the round.
    """
    work_and_claim(shell, (A, *others), A, *others)
    assert isinstance(shell.state.phase, Commit)
    [own] = [each for each in shell.state.phase.open.claims.values() if each.peer == A]
    in_time = {output.digest for output in own.outputs[:but_for]}
    for who, shards in [*shell.state.phase.lacking.items()]:
        shell.tell(Held(who, shards & in_time, shell.now))
    deliver(shell, A)
    shell.pass_time(shell.now + shell.terms.deliver_ms)
    assert isinstance(shell.state.phase, Reduce) and merged(shell) == {*others}
    open = shell.state.phase.open
    [claim] = [each for each in open.claims.values() if each.peer == A]
    if and_hold:
        shell.tell(Controlled("hold", shell.now))
    seal(shell)
    return claim


def claims_of(shell: Shell) -> list[WorkClaim]:
    """That are stored in the round in work."""
    assert shell.state.open is not None
    return [*shell.state.open.claims.values()]


def test_update__without_what_came_too_late__the_next_round_has_the_claim() -> None:
    shell = shell_of(A, B, C)

    late = round_without_delivery_of_a(shell, B, C)

    assert isinstance(shell.state.phase, Work) and claims_of(shell) == [late]
    open = shell.state.phase.open
    assert {item for item, each in open.counted[GROUP].items() if each.peer == A} == {*late.numbers}
    assert {*late.numbers} < open.issued and len(open.issued) == 3


def test_late_claim__delivered_while_others_work__is_merged_once_by_the_next_round() -> None:
    shell = shell_of(A, B, C)
    late = round_without_delivery_of_a(shell, B, C)

    work_and_claim(shell, (B, C), B, C)
    shell.tell(Held(COORDINATOR, frozenset(each.digest for each in late.outputs), shell.now))
    deliver(shell)

    assert merged(shell) == {A, B, C}
    assert (
        isinstance(shell.state.phase, Reduce) and late.digest() in shell.state.phase.closed.weights
    )
    assert A not in shell.state.phase.closed.reducers
    seal(shell)
    assert claims_of(shell) == [] and shell.state.sealed_items == 5


def test_late_claim__not_delivered__is_not_waited_for_and_its_items_are_dealt_anew() -> None:
    shell = shell_of(A, B, C)
    late = round_without_delivery_of_a(shell, B, C)
    work_and_claim(shell, (B, C), B, C)
    began = shell.now

    deliver(shell, A)

    assert merged(shell) == {B, C} and shell.now == began
    seal(shell)
    assert claims_of(shell) == [] and shell.state.open is not None
    assert {*late.numbers} <= shell.state.open.issued
    assert not shell.state.open.counted[GROUP]


def test_late_claim__its_round_is_void__waits_on_and_is_no_older_for_it() -> None:
    shell = shell_of(A, B, C)
    late = round_without_delivery_of_a(shell, B, C)
    work_and_claim(shell, (B, C))
    shell.pass_time(shell.now + 2 * shell.terms.commit_ms + 2 * shell.terms.deliver_ms)
    shell.store_seal()
    shell.apply(A, B, C)
    assert claims_of(shell) == [late]

    work_and_claim(shell, (B, C), B, C)
    shell.tell(Held(COORDINATOR, frozenset(each.digest for each in late.outputs), shell.now))
    deliver(shell)

    assert merged(shell) == {A, B, C}


def test_late_claims__of_all_but_one__are_no_quorum() -> None:
    shell = shell_of(A, B, C)
    late = round_without_delivery_of_a(shell, B, C)
    work_and_claim(shell, (B,), B)
    shell.tell(Held(COORDINATOR, frozenset(each.digest for each in late.outputs), shell.now))

    deliver(shell)

    assert not isinstance(shell.state.phase, Reduce)


def test_late_claim__nothing_else_is_left_of_the_job__its_items_are_dealt_anew() -> None:
    shell = shell_of(A, B, C, rounds=1)

    late = round_without_delivery_of_a(shell, B, C)

    assert isinstance(shell.state.phase, Work) and claims_of(shell) == []
    assert shell.state.phase.open.issued == {*late.numbers}


def test_late_claim__its_peer_is_gone__is_dropped() -> None:
    shell = shell_of(A, B, C)
    work_and_claim(shell, (A, B, C), A, B, C)
    deliver(shell, A)
    shell.pass_time(shell.now + shell.terms.deliver_ms)
    assert isinstance(shell.state.phase, Reduce)
    shell.reduce(*sorted(shell.state.phase.owing))
    shell.tell(Disconnected(A, shell.now))
    shell.hold(B, C)
    shell.pass_time(shell.now + shell.terms.lease_grace)

    shell.store_seal()

    assert A not in shell.state.members and claims_of(shell) == []


def test_late_claim__some_of_it_came_in_time__the_rest_and_that_are_asked_for_in_the_next() -> None:
    """Others reduce the next round: what the reducers of the last one have is of no use to it."""
    shell = shell_of(A, B, C)
    late = round_without_delivery_of_a(shell, B, C, but_for=1)
    shards = {output.digest for output in late.outputs}

    assert shell.keeping.keys() >= shards

    shell.crash()
    for who in (A, B, C):
        shell.tell(Connected(who, "", shell.state.newest_seal, shell.now))
    assert shell.keeping.keys() >= shards


def test_late_claim__its_peer_goes_away__the_round_does_not_wait_for_it() -> None:
    shell = shell_of(A, B, C, D)
    round_without_delivery_of_a(shell, B, C, D)
    shell.tell(Disconnected(A, shell.now))
    work_and_claim(shell, (B, C), B, C)
    began = shell.now

    deliver(shell, A)

    assert merged(shell) == {B, C} and shell.now == began


def test_late_claim__no_quorum_beside_it__is_given_up_at_the_last_try_before_a_pause() -> None:
    """A is full by what it did, B alone is no quorum: every round would be void."""
    shell = shell_of(A, B, C)
    late = round_without_delivery_of_a(shell, B, C)
    shell.tell(Disconnected(C, shell.now))
    shell.pass_time(shell.now + shell.terms.lease_grace)
    for _ in range(2):
        assert claims_of(shell) == [late]
        shell.pass_time(shell.now + 2 * shell.terms.round_ms)
        shell.store_seal()
        shell.apply(A, B)

    assert claims_of(shell) == [] and not shell.state.paused
    work_and_claim(shell, (A, B), A, B)
    deliver(shell)
    assert merged(shell) == {A, B}


@pytest.mark.parametrize("is_held", [False, True])
def test_stop__a_late_claim_waits_and_no_work_may_be_closed__the_job_ends(is_held: bool) -> None:
    """As when the budget for audits is spent, or in the poster's pause."""
    shell = shell_of(A, B, C)
    round_without_delivery_of_a(shell, B, C, and_hold=is_held)

    if not is_held:
        shell.tell(Checked(None, False, False, NO_BYTES, False, (), shell.now))
    shell.tell(Controlled("stop", shell.now))

    assert shell.seal_due is not None and shell.seal_due[1] == "empty"


def test_late_on_purpose__its_owner_rests_and_it_is_paid_no_item_more_than_in_time() -> None:
    shell = shell_of(A, B, C, rounds=20)
    round_without_delivery_of_a(shell, B, C)

    assert is_off(shell, A)
    assert shell.state.open is not None and shell.state.open.held.get(A, NO_BYTES) == NO_BYTES
