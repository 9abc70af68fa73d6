"""`job watch`, and what a poster asks of its job: at a market where things happen meanwhile."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.keys.store import save_wallet
from contracts.terms.ids import JobId
from market.bodies.jobs import StepReport
from market.bodies.signing import reports_digest
from market.service.store_reports import store_reports
from tests.integration.bad_input.servers import empty_world, market_at_url
from tests.integration.bad_input.verbs import Said, call
from tests.integration.market.client import client_of
from tests.integration.market.test_events import end, known_job
from tests.integration.market.test_wishes import heed, hosted
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import World
from tests.support.patience import patience
from tests.support.stack import ROOT


@dataclass
class Running:
    """A market with a job of one step, and a folder with its poster's keystore."""

    world: World
    maker: JobMaker
    environment: dict[str, str]

    @property
    def job(self) -> JobId:
        """The job."""
        return self.maker.spec.job()

    def says(self, *words: str) -> "asyncio.Task[Said]":
        """A command, in a thread of its own."""
        return asyncio.create_task(asyncio.to_thread(call, list(words), self.environment))

    async def said(self, *words: str) -> Said:
        """What a command said in the end."""
        async with asyncio.timeout(patience(60)):
            return await self.says(*words)

    async def heeds(self, wish: int) -> None:
        """The job's host says that the job is as was wished."""
        async with client_of(self.world) as client:
            async with asyncio.timeout(patience(30)):
                while (await hosted(client))[0].wish != wish:
                    await asyncio.sleep(0.05)
            await heed(client, self.job, wish)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    world = empty_world(int(time.time()))
    maker = await known_job(world)
    save_wallet(folder / "poster.json", make_wallet("poster"))
    save_wallet(folder / "stranger.json", make_wallet("stranger"))
    async with market_at_url(world) as url:
        yield Running(world, maker, {"TALLYSTICK_HOME": str(folder), "TALLYSTICK_MARKET": url})


# ----------------------------------------------------------------------------------------- watch


async def test_watch__job_that_ends_meanwhile__shows_steps_and_answers_with_its_end(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as it, asyncio.timeout(patience(120)):
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tallystick", "job", "watch", it.job.hex(), "-o", "json"),
            cwd=ROOT,
            env={**os.environ, **it.environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert watching.stderr is not None
        first = (await watching.stderr.readline()).decode()
        await end(it.world, it.maker)
        stdout, stderr = await watching.communicate()

    assert watching.returncode == 0, stderr
    assert "training step 1/12" in first
    assert json.loads(stdout)["state"] in ("finished", "closed")
    assert "step 2/12" in stderr.decode().splitlines()[-1]


async def reports(it: Running, step: int, loss: int, validation: int | None = None) -> None:
    """The coordinator says how a step went."""
    said = StepReport(
        step=step, loss_millionths=loss, tokens_per_second=512, at=it.world.now,
        validation_millionths=validation,
    )  # fmt: skip
    signature = it.maker.session.private_key.sign(reports_digest(it.job, [said]))
    await store_reports(it.job, [said], signature, it.world.new_work())


async def test_watch__into_a_folder__has_each_step_once_though_it_was_stopped(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    words = ("job", "watch", "--to", str(run))

    async with running(tmp_path) as it, asyncio.timeout(patience(180)):
        await reports(it, 1, 4_500_000)
        first = await it.said(*words, it.job.hex(), "--timeout", "1")
        before = (run / "metrics.jsonl").read_text().splitlines()
        await end(it.world, it.maker)
        await reports(it, 2, 4_250_000)
        watching = it.says(*words, it.job.hex())
        await asyncio.to_thread(until_lines, run / "metrics.jsonl", 2)
        await reports(it, 2, 4_250_000, 4_000_000)  # validated when nothing is trained any more
        second = await watching
        third = await it.said(*words, it.job.hex())
        shown = await it.said("job", "compare", it.job.hex(), it.job.hex()[:8])
        compared = await it.said("job", "compare", it.job.hex(), "-o", "json")

    assert (first.exit_code, second.exit_code, third.exit_code) == (7, 0, 0), (second, third)
    told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(before) == 1 and json.loads(before[0]) == told[0]
    assert [each["step"] for each in told] == [1, 2]
    assert [each["loss"] for each in told] == [4.5, 4.25]
    assert [each["validation_loss"] for each in told] == [None, 4.0]
    assert 0 < told[0]["tokens"] < told[1]["tokens"]
    assert all(each["peers"] > 0 and each["job"] == it.job.hex() for each in told)
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    assert shown.stdout.count("4.0000 at 2") == 2 and "what differs" not in shown.stdout, shown
    curve = json.loads(compared.stdout)["by_tokens"]
    assert [row["losses_millionths"] for row in curve] == [[4_500_000], [4_250_000]]


def until_lines(path: Path, number: int) -> None:
    """Wait until a file has so many lines; the caller bounds it."""
    while not path.exists() or path.read_bytes().count(b"\n") < number:
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("verb", "shown", "data"),
    [
        (("watch",), "step 1/12", {"state": "running"}),
        (("pause", "--wait"), "pause: waits for a host", {"waits_for": "host"}),
    ],
)
async def test_verb__waited_for_too_long__is_a_time_out_that_says_where_it_is(
    verb: tuple[str, ...], shown: str, data: dict[str, str], tmp_path: Path
) -> None:
    async with running(tmp_path) as it:
        said = await it.said("job", *verb, it.job.hex(), "--timeout", "1", "-o", "json")

    assert (said.exit_code, said.stdout) == (7, "")
    told, problem = said.stderr.splitlines()
    assert shown in told and json.loads(problem)["data"] == data


# ------------------------------------------------------------------------ pause, resume, cancel


async def test_pause__waited_for__is_done_when_the_coordinator_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        asked = it.says("job", "pause", it.job.hex(), "--wait", "--timeout", "60", "-o", "json")
        await it.heeds(1)
        async with asyncio.timeout(patience(60)):
            said = await asked
        resumed = await it.said("job", "resume", it.job.hex()[:12], "-o", "json")

    assert said.exit_code == 0, said
    operation = json.loads(said.stdout)["operation"]
    assert (operation["action"], operation["state"]) == ("pause", "done")
    assert said.stderr.splitlines()[-1] == "pause: done; the job is running"
    again = json.loads(resumed.stdout)
    assert (again["wanted"], again["operation"]["state"]) == ("paused", "pending")


async def test_cancel__dry_run_then_twice__is_one_wish(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        would = await it.said("job", "cancel", it.job.hex(), "--dry-run", "-o", "json")
        first, second = [await it.said("job", "cancel", it.job.hex()) for _ in range(2)]
        back = await it.said("job", "resume", it.job.hex(), "-o", "json")

    assert json.loads(would.stdout)["operation"] is None
    assert json.loads(would.stdout)["wanted"] == "running"
    assert (first.exit_code, second.exit_code) == (0, 0) and "--wait" in first.stdout
    assert (back.exit_code, json.loads(back.stderr)["code"]) == (6, "conflict")
