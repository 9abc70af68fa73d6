"""How a job that is followed reads, as a line and as a picture."""

import io
from typing import Any

from rich.console import Console

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import JobView, ProgressView, StepReport
from tallystick.cli.job_watch import MOST_SECONDS, live_line, live_picture, seconds_left


def report(step: int, at: int) -> StepReport:
    return StepReport(step=step, loss_millionths=1, tokens_per_second=1, at=UnixMillis(at))


def going(**changed: Any) -> JobView:
    """A job after two of ten steps, a second apart."""
    values: dict[str, Any] = {
        "job": JobId(bytes(32)),
        "state": "running",
        "outcome": "training",
        "failure": None,
        "spec": {"name": "a job", "budget": 1000, "rules": {}},
        "signed": b"x",
        "opening": None,
        "coordinator": Address(bytes(20)),
        "coordinator_address": None,
        "leases": (),
        "progress": ProgressView(
            step=3, trained=2, steps=10, loss_millionths=4_500_000, tokens_per_second=321
        ),
        "reports": (report(1, 2000), report(2, 3000)),
        "num_messages": 0,
        **{name: BaseUnits(0) for name in ("funded", "committed", "free", "vested", "claimed")},
        "earned": BaseUnits(2000),
        "not_matched": (),
        "advice": None,
        "transactions": {},
        "unpublished": (),
    }
    return JobView(**(values | changed))


def test_live_line__after_two_steps__has_progress_loss_speed_spend_and_time_left() -> None:
    line = live_line(going())

    for words in ("training step 2/10", "4.5000", "321 tokens/s", "0.002 of 0.001 tokens"):
        assert words in line
    assert line.endswith("0:00:08 left")


def test_live_line__nobody_has_the_weights_of_a_stage__says_why_it_stands_still() -> None:
    assert live_line(going(failure="stands still: why")).endswith("  stands still: why")


def test_live_picture__job_of_a_stranger__fits_and_steers_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=80)
    spec = {"name": "a\x1b[31mjob", "budget": 1000, "rules": {}}

    console.print(live_picture(going(spec=spec)))

    assert isinstance(console.file, io.StringIO)
    picture = console.file.getvalue()
    for words in ("training", "step 2/10", "0:00:08 left", "321 tokens/s", "off: work unchecked"):
        assert words in picture
    assert "\x1b" not in picture
    assert all(len(line) <= 80 for line in picture.splitlines())


def test_seconds_left__whatever_a_coordinator_says_of_when__is_a_span() -> None:
    assert seconds_left(going(reports=())) is None
    for later in (0, 2**53 - 1):
        said = (report(1, 1000), report(2, later))
        assert seconds_left(going(reports=said)) in (0, MOST_SECONDS)
