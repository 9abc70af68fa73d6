"""When does the status page say late or down, and why?"""

from typing import Any

import pytest

from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.bodies.market import (
    BeatView,
    ChainActionView,
    ChainStatusView,
    FeedStatusView,
    HostStatusView,
    StatusView,
    UnanchoredView,
)
from market.web.health import Bounds, Check, checks_of, worst

NOW = UnixMillis(1_700_000_000_000)
CHAIN: dict[str, Any] = {
    "reachable": True, "head": 90, "head_age_millis": 1000,
    "settled": 90, "seen": 90, "lag_blocks": 0, "confirmations": 1,
}  # fmt: skip


def beat(queue: str, lag: int) -> BeatView:
    return BeatView(queue=queue, at=NOW, lag_millis=lag)


def host(*, is_heard: bool) -> HostStatusView:
    return HostStatusView(host="h", heard_at=NOW, age_millis=0, is_heard=is_heard, jobs=2)


def status(chain: dict[str, Any] | None = None, **changed: Any) -> StatusView:
    """A market that is well, but for this."""
    values: dict[str, Any] = {
        "version": "1", "python": "3", "clock": NOW, "jobs": {},
        "chain": ChainStatusView(**(CHAIN | (chain or {}))),
        "feed": FeedStatusView(streams=1, hears=True, lag_millis=20),
        "actions": (), "batch": None, "unanchored": None,
        "hosts": (host(is_heard=True),), "beats": (beat("chain", 0), beat("default", 0)),
    }  # fmt: skip
    return StatusView(**(values | changed))


def check(found: StatusView, name: str, *, is_embedded: bool = False) -> Check:
    """One check by its name."""
    checks = checks_of(found, is_embedded=is_embedded)
    return next(each for each in checks if each.name == name)


def test_checks__market_that_is_well__are_ok_with_a_reason() -> None:
    checks = checks_of(status(), is_embedded=False)

    assert worst(checks) == "ok" and {each.health for each in checks} == {"ok"}
    assert all(each.reason and each.value for each in checks) and len(checks) >= 9


@pytest.mark.parametrize(
    ("value", "health"), [(0, "ok"), (60, "ok"), (60.1, "late"), (600, "late"), (601, "down")]
)
def test_bounds__value__is_judged(value: float, health: str) -> None:
    assert Bounds(60, 600).judge(value) == health


@pytest.mark.parametrize(
    ("found", "name", "health"),
    [
        (status({"reachable": False, "head_age_millis": None}), "Chain node", "down"),
        (status({"head_age_millis": 70_000}), "Age of the chain head", "late"),
        (status({"head_age_millis": 700_000}), "Age of the chain head", "down"),
        (status({"lag_blocks": 4}), "Blocks not read yet", "late"),
        (status({"lag_blocks": None}), "Blocks not read yet", "late"),
        (status({"lag_blocks": 51}), "Blocks not read yet", "down"),
        (status(beats=(beat("chain", 0),)), "Queue default", "down"),
        (status(beats=(beat("chain", 11_000), beat("default", 0))), "Queue chain", "late"),
        (status(hosts=()), "Hosts of coordinators", "late"),
        (status(hosts=(host(is_heard=False),)), "Hosts of coordinators", "down"),
    ],
)
def test_checks__something_is_wrong__is_said(found: StatusView, name: str, health: str) -> None:
    wrong = check(found, name)

    assert wrong.health == health == worst(checks_of(found, is_embedded=False))
    assert wrong.reason != check(status(), name).reason


def test_checks__embedded_chain_at_rest__is_no_fault() -> None:
    found = status({"head_age_millis": 7_000_000})

    assert check(found, "Age of the chain head", is_embedded=True).health == "ok"


@pytest.mark.parametrize(("hears", "lag", "health"), [(True, 1500, "late"), (False, 100, "late"),
                                                      (False, 11_000, "down")])  # fmt: skip
def test_checks__feed__is_late_when_slow_or_deaf(hears: bool, lag: int, health: str) -> None:
    feed = FeedStatusView(streams=1, hears=hears, lag_millis=lag)

    assert check(status(feed=feed), "Lag of live events").health == health


def test_checks__oldest_action_and_seal__are_named_with_their_age() -> None:
    fund = ChainActionView(what="fund", waiting=2, since=NOW, age_millis=40_000)
    seal = UnanchoredView(job=JobId(bytes(32)), step=3, stored_at=NOW, age_millis=61_000, seals=4)
    found = status(actions=(fund,), unanchored=seal)

    assert check(found, "Chain actions that wait").value == "2, the oldest (fund) for 40 s"
    assert check(found, "Seals not anchored yet").value == "4, the oldest for 1 min 1 s"
    assert worst(checks_of(found, is_embedded=False)) == "late"
