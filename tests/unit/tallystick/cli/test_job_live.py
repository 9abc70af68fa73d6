"""How a job that is followed reads, as a line and as a picture."""

import io
from typing import Any

from rich.console import Console

from contracts.terms.amounts import BaseUnits, PricePerPflop
from market.bodies.events import LeaseEvent, ReportedEvent, StateEvent
from tallystick.cli.job_watch import live_picture
from tallystick.sdk.watch import JobLive
from tests.unit.tallystick.sdk.test_watch import (
    ACCOUNT,
    OTHER,
    at,
    folded,
    peer,
    posted,
    ruled,
    sealed,
)


def drawn(live: JobLive) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(live_picture(live))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def going(**changed: Any) -> JobLive:
    """A checked job after two of ten steps, a second apart."""
    report = ReportedEvent(at=at(3), step=2, loss_millionths=4_500_000, tokens_per_second=321)
    order = posted().model_copy(update={"audit_budget": BaseUnits(10), **changed})
    lease = LeaseEvent(
        at=at(1),
        lease=OTHER,
        account=ACCOUNT,
        stage=0,
        price=PricePerPflop(1),
        state="active",
    )
    state = StateEvent(at=at(1), state="running", failure=None)
    steps = [sealed(1, 2), sealed(2, 3)]
    return folded(order, state, lease, peer("join"), *steps, report, ruled("drawn"))


def test_live_picture__checked_job__has_loss_speed_spend_peers_audits_and_time_left() -> None:
    picture = drawn(going())

    for words in ("training", "step 2/10", "0:00:08 left", "5.0000", "321 tokens/s"):
        assert words in picture
    for words in ("0.000 of 0.001 tokens", "1 at work, 1 leases", "1 drawn: 0 match", "1 open"):
        assert words in picture
    assert all(len(line) <= 80 for line in picture.splitlines())


def test_live_picture__unchecked_job_of_a_stranger__says_so_and_steers_no_terminal() -> None:
    picture = drawn(going(name="a\x1b[31mjob", audit_budget=None))

    assert "off: nobody checks" in picture and "\x1b" not in picture
