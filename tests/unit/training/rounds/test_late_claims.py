"""Claims of local steps that are delivered too late: merged by the next round, paid once."""

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
from training.rounds.events import Disconnected, Held
from training.rounds.state import COORDINATOR, NO_BYTES, Reduce, Work
from training.strategies.local.rules import GROUP

A, B, C = peer("a"), peer("b"), peer("c")


def round_without_delivery_of_a(shell: Shell, *others: PeerId) -> WorkClaim:
    """All work and claim, A's shards do not come, the round is sealed; returns A's claim."""
    work_and_claim(shell, (A, *others), A, *others)
    deliver(shell, A)
    shell.pass_time(shell.now + shell.terms.deliver_ms)
    assert isinstance(shell.state.phase, Reduce) and merged(shell) == {*others}
    open = shell.state.phase.open
    [claim] = [each for each in open.claims.values() if each.peer == A]
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


def test_late_on_purpose__its_owner_rests_and_it_is_paid_no_item_more_than_in_time() -> None:
    shell = shell_of(A, B, C, rounds=20)
    round_without_delivery_of_a(shell, B, C)

    assert is_off(shell, A)
    assert shell.state.open is not None and shell.state.open.held.get(A, NO_BYTES) == NO_BYTES
