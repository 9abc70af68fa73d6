"""`SIGKILL` to what uploads a job's data or downloads its model: the same command goes on.

A moment is a request: the market kills the process before it hears it, while bytes of it or of the
answer pass, or when it has done what was asked. So no moment depends on the speed of the machine.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.terms.ids import JobId
from market.api.app import make_app
from tallystick.sdk.parts import download
from tests.integration.bad_input.posting import escrows, world_of_a_person
from tests.integration.bad_input.servers import empty_world, market_in_a_thread
from tests.support.market_world import World
from tests.support.stack import ROOT

HOW_OFTEN = [3, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(400)])]
When = Literal["before", "within", "after"]


@dataclass
class Killer:
    """Between a process and its market."""

    app: ASGIApp
    process: "subprocess.Popen[str] | None" = None
    number: int = 0  # of the request at which it is killed; 0: at none
    when: When = "before"
    num_asked: int = 0
    stored: Counter[str] = field(default_factory=Counter)  # blobs, by path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        self.num_asked += 1
        is_now = self.process is not None and self.num_asked == self.number
        if is_now and self.when == "before":
            self._kill()
            return

        async def received() -> Message:
            message = await receive()
            if is_now and self.when == "within" and message.get("body"):
                self._kill()
            return message

        async def sent(message: Message) -> None:
            if scope["method"] == "PUT" and message.get("status", 500) < 300:
                self.stored[scope["path"]] += 1
            if is_now and (self.when == "after" or message.get("body")):
                self._kill()
            if not is_now or self.when == "within":
                await send(message)

        await self.app(scope, received, sent)

    def _kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def run(self, folder: Path, url: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of ours, to its end or to the moment at which it is killed."""
        self.num_asked = 0
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tallystick", *words, "--market", url),
            env={**os.environ, "TALLYSTICK_HOME": str(folder / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        said, complained = self.process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, self.process.returncode, said, complained)

    def kill_often(self, kills: int, folder: Path, url: str, *words: str) -> int:
        """Kill the command at moments drawn at will; how often it was."""
        num_killed, draw = 0, random.Random(kills)
        for _ in range(kills):
            self.number = draw.randrange(1, max(2, self.num_asked + 2))
            self.when = draw.choice(("before", "within", "after"))
            num_killed += self.run(folder, url, *words).returncode == -9
        self.number = 0
        return num_killed


@pytest.mark.parametrize("kills", HOW_OFTEN)
def test_submit__killed_while_it_uploads__one_job_and_no_blob_is_stored_twice(
    kills: int, tmp_path: Path
) -> None:
    world = asyncio.run(world_of_a_person(tmp_path, num_coordinators=kills + 1))
    killer = Killer(make_app(replace(world.api(), faucet_grants=0)))
    line = ("job", "submit", str(tmp_path / "job.yaml"), "--unmatched", "--yes")
    killer.num_asked = 12  # about as many as it asks
    with market_in_a_thread(world, killer) as url:
        num_killed = killer.kill_often(kills, tmp_path, url, *line)
        done = killer.run(tmp_path, url, *line)

    assert (done.returncode, done.stderr) == (0, done.stderr)
    assert num_killed >= kills // 2
    assert set(killer.stored.values()) == {1}
    assert asyncio.run(escrows(world)).keys() == {bytes.fromhex(done.stdout.strip())}


@pytest.mark.parametrize("kills", HOW_OFTEN)
def test_download__killed_at_any_moment__goes_on_and_is_the_same_folder(
    kills: int, tmp_path: Path
) -> None:
    world = empty_world(1_750_000_000)
    (tmp_path / "job").mkdir()
    job = asyncio.run(_published(world, tmp_path))
    killer = Killer(make_app(world.api()))
    line = ("job", "download", job.hex(), "--to", str(tmp_path / "back"))
    killer.num_asked = 20
    with market_in_a_thread(world, killer) as url:
        num_killed = killer.kill_often(kills, tmp_path, url, *line)
        done = killer.run(tmp_path, url, *line)

    assert (done.returncode, done.stderr) == (0, done.stderr)
    assert num_killed >= kills // 2
    assert _files(tmp_path / "back") == _files(tmp_path / "whole")
    assert not list(tmp_path.glob(".back*"))


async def _published(world: World, folder: Path) -> JobId:
    """A job with published weights, which were downloaded to `whole`."""
    from tests.support.trained_job import trained  # slow to import

    async with AsyncExitStack() as stack:
        made = trained(world, folder / "given", folder / "job")
        client, maker, _ = await stack.enter_async_context(made)
        await download(client, maker.spec.job(), folder / "whole")
        return maker.spec.job()


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
