"""Which coordinator an account is to have, whoever else asks for some."""

from dataclasses import replace

from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.service.coordinators import ALLOCATED_MILLIS, num_free, ranked
from market.service.rows import CoordinatorRow, HostRow

NOW = UnixMillis(10_000_000)
ANN, EVE = Address(b"a" * 20), Address(b"e" * 20)
HOSTS = [HostRow("new", NOW), HostRow("old", UnixMillis(NOW - 100_000))]


def row(number: int, by: Address | None = None, ago: int = 0, host: str = "new") -> CoordinatorRow:
    """A coordinator that was allocated `ago` ms ago, if at all."""
    at = None if by is None else UnixMillis(NOW - ago)
    return CoordinatorRow(Address(bytes([number]) * 20), host, at, by)


def first(*rows: CoordinatorRow, by: Address = ANN) -> int:
    """The number of the coordinator that `by` gets."""
    return ranked(rows, HOSTS, by, NOW)[0].address[0]


def test_ranked__some_are_free__comes_of_the_host_that_was_heard_last() -> None:
    assert first(row(1, host="old"), row(2, EVE), row(3)) == 3


def test_ranked__free_one_of_a_silent_host__comes_after_all_of_others() -> None:
    assert first(row(1, host="old"), row(2, EVE)) == 2


def test_ranked__allocation_has_lapsed__is_free_again() -> None:
    lapsed = row(1, EVE, ALLOCATED_MILLIS)

    assert first(lapsed, row(2, EVE)) == 1
    assert num_free([lapsed, row(2, EVE), replace(row(3), job=JobId(bytes(32)))], NOW) == 1


def test_ranked__none_is_free__ones_own_and_else_the_oldest_serves_again() -> None:
    assert first(row(1, EVE, 9), row(2, ANN, 1)) == 2
    assert first(row(1, EVE, 1), row(2, EVE, 9)) == 2
