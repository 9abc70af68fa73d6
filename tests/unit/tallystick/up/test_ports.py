"""Ports are chosen once, kept, and only the API's is asked for."""

import random
from collections.abc import Callable

import pytest

from contracts.terms.errors import Malformed
from tallystick.up import ports
from tallystick.up.ports import assign, checked_address


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    occupied: set[int] = set()
    free: Callable[[int], bool] = lambda port: port not in occupied  # noqa: E731  # one line
    monkeypatch.setattr(ports, "is_free", free)
    monkeypatch.setattr(ports, "holder", lambda port: "somebody (pid 5)")
    return occupied


def given(
    *names: str, before: dict[str, int] | None = None, api_port: int | None = None
) -> dict[str, int]:
    return assign(names, api_port=api_port, before=before or {}, generator=random.Random(1))


def test_assign__again__keeps_what_was_chosen(taken: set[int]) -> None:
    first = given("api", "postgres", api_port=9000)

    assert given("api", "postgres", before=first) == first


def test_assign__inner_port_taken_by_now__is_chosen_anew(taken: set[int]) -> None:
    first = given("postgres")
    taken.add(first["postgres"])

    assert given("postgres", before=first)["postgres"] not in taken


@pytest.mark.parametrize("port", [-1, 65_536])
def test_assign__no_port_number__is_malformed(taken: set[int], port: int) -> None:
    with pytest.raises(Malformed):
        given("api", api_port=port)


def test_choose__outgoing_range__is_avoided(taken: set[int]) -> None:
    low, high = ports._range()
    generator = random.Random(2)

    assert all(low <= ports.choose((), generator) < high for _ in range(100))


@pytest.mark.parametrize("text", ["0.0.0.0", "224.0.0.1", "market.local", "::1", "", "1.2.3.4:80"])
def test_checked_address__none_that_others_can_be_told__is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="--listen"):
        checked_address(text)
