"""`job submit` as a process, ended by Ctrl-C or SIGKILL at three moments: one id, one escrow.

A moment is a step of the process (requests of one kind): its market ends it just before it hears
the first of them, or just after it did what was asked. So no moment depends on the speed of the
machine. `test_submit.py` cuts the same at every step, without a process.
"""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from market.api.app import make_app
from tests.integration.bad_input.posting import escrows, world_of_a_person
from tests.integration.bad_input.servers import market_in_a_thread
from tests.support.stack import ROOT

BUDGET = 10 * 10**6


@dataclass(frozen=True)
class Moment:
    """When the process ends, and how."""

    step: int
    signal: signal.Signals
    is_heard: bool  # the market still does what was asked


ONE_AFTER_THE_OTHER = [
    Moment(3, signal.SIGINT, is_heard=True),  # a coordinator is given and nobody has heard of it
    Moment(6, signal.SIGKILL, is_heard=False),  # signed, and not sent
    Moment(5, signal.SIGKILL, is_heard=True),  # posted, and nobody has heard of it
]


@dataclass
class Ender:
    """Between the process and its market: ends the process at a moment."""

    app: ASGIApp
    moment: Moment | None = None
    process: "subprocess.Popen[str] | None" = None
    steps: list[str] = field(default_factory=list)
    num_ended: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        parts = scope["path"].split("/")[2:]
        step = " ".join([scope["method"] * (parts[0] != "blobs"), parts[0], *parts[2:]])
        is_next = self.steps[-1:] != [step]
        self.steps += [step] * is_next
        moment, process = self.moment, self.process
        if (
            moment is None
            or process is None
            or (len(self.steps) - 1, is_next) != (moment.step, True)
        ):
            await self.app(scope, receive, send)
            return

        async def end(message: object) -> None:
            """Instead of an answer."""
            if self.moment is not None:
                self.moment = None
                self.num_ended += 1
                process.send_signal(moment.signal)

        if moment.is_heard:
            await self.app(scope, receive, end)
        else:
            await end(None)


@dataclass
class Person:
    """Somebody who types `job submit` in a folder of their own."""

    folder: Path
    url: str
    ender: Ender

    def submit(self, *options: str, moment: Moment | None = None) -> tuple[int, str, str]:
        """Exit code and both outputs of `job submit`, which ends at `moment` if not before."""
        home = self.folder / "home"
        self.ender.moment, self.ender.process, self.ender.steps = None, None, []
        line = ("job", "submit", str(self.folder / "job.yaml"), "--market", self.url)
        process = subprocess.Popen(
            (sys.executable, "-m", "tallystick", *line, "--unmatched", "--yes", *options),
            env={**os.environ, "TALLYSTICK_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.ender.process, self.ender.moment = process, moment
        said, complained = process.communicate(timeout=120)
        return process.returncode, said, complained


def test_submit__ended_three_times__one_id_and_one_escrow(tmp_path: Path) -> None:
    """One order, ended at each moment in turn, then left alone: it is one job, paid once."""
    drawn, folder = ONE_AFTER_THE_OTHER, tmp_path
    world = asyncio.run(world_of_a_person(folder, num_coordinators=4))
    ender = Ender(make_app(replace(world.api(), faucet_grants=0)))
    with market_in_a_thread(world, ender) as url:
        person = Person(folder, url, ender)
        printed = [person.submit("--wait", "--timeout", "60", moment=each)[1] for each in drawn]
        code, said, complained = person.submit()
    assert (code, complained) == (0, complained)
    assert ender.num_ended == len(drawn), ender.steps
    assert {each.strip() for each in printed} <= {"", said.strip()}, drawn
    assert asyncio.run(escrows(world)) == {bytes.fromhex(said.strip()): BUDGET}, drawn
