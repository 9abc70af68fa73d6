"""The supervisor with services of one line of shell: crashes, stubbornness, leftovers, order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from contracts.terms.errors import NotFound, ServiceUnreachable
from tallystick.up.data_folder import DataFolder, open_data_folder
from tallystick.up.processes import UP_ID, environment_of, leftovers
from tallystick.up.spec import Backoff, Item, ServiceSpec, Step
from tallystick.up.supervisor import Supervisor
from tests.integration.up.running import eventually
from tests.support.patience import patience
from tests.support.stack import kill_and_see, restarted

Supervised = Callable[..., AbstractAsyncContextManager[Supervisor]]


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return open_data_folder(tmp_path / "home")


@pytest.fixture
def supervised(folder: DataFolder) -> Supervised:
    up_id = f"test-{time.monotonic_ns()}"

    @asynccontextmanager
    async def supervise(*items: Item, lines: list[str] | None = None) -> AsyncIterator[Supervisor]:
        said = lines if lines is not None else []
        supervisor = Supervisor(
            items,
            folder=folder,
            environment={"PATH": "/usr/bin:/bin", UP_ID: up_id},
            up_id=up_id,
            report=said.append,
            backoff=Backoff(first=0.01, most=0.05),
        )
        try:
            yield supervisor
        finally:
            await supervisor.stop()
            assert leftovers(up_id) == []

    return supervise


def shell(name: str, script: str, *needs: str, grace: float = 5, within: float = 10) -> ServiceSpec:
    return ServiceSpec(
        name=name,
        argv=("sh", "-c", script),
        says="ready" if "ready" in script else "",
        depends_on=needs,
        grace=grace,
        ready_within=within,
    )


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            shell("weak", "echo why; exit 3 # ready"),
            r"weak exited with 3 .*3 times(?s:.*)why",
        ),
        (shell("mute", "sleep 60 # ready", within=0.1), "mute did not answer"),
        (
            ServiceSpec(name="none", argv=("/no/such/program",), says="ready"),
            "/no/such/program: No such file",
        ),
        (Step(name="slow", argv=("sleep", "60"), within=0.1), "slow still ran after"),
    ],
    ids=["ends at once", "never answers", "program is missing", "step takes too long"],
)
async def test_start__what_cannot_start__is_an_error_that_says_how(
    item: Item, said: str, supervised: Supervised
) -> None:
    async with supervised(item) as supervisor:
        with pytest.raises(ServiceUnreachable, match=said):
            await supervisor.start()


async def test_start__step_fails__nothing_after_it_starts(
    supervised: Supervised, folder: DataFolder
) -> None:
    step = Step(name="step", argv=("sh", "-c", "echo bad luck; exit 1"))
    async with supervised(step, shell("later", "echo ready; sleep 60", "step")) as supervisor:
        with pytest.raises(ServiceUnreachable, match=r"step exited with 1(?s:.*)bad luck"):
            await supervisor.start()
        with pytest.raises(NotFound):
            supervisor.identity("later")


async def test_stop__chain_of_needs__stops_whoever_needs_others_first(
    supervised: Supervised,
) -> None:
    lines: list[str] = []
    script = "echo ready; exec sleep 60"
    step = Step(name="between", depends_on=("a",))
    items = (shell("a", script), step, shell("b", script, "between"), shell("c", script, "b"))
    async with supervised(*items, lines=lines) as supervisor:
        await supervisor.start()

    assert [line.split()[0] for line in lines if "stopped" in line] == ["c", "b", "a"]


async def test_stop__service_ignores_sigterm__is_killed_after_its_grace(
    supervised: Supervised,
) -> None:
    lines: list[str] = []
    stubborn = shell("rock", "trap '' TERM; echo ready; while :; do sleep 60; done", grace=0.1)
    async with supervised(stubborn, lines=lines) as supervisor:
        await supervisor.start()

    assert any("killed" in line for line in lines)


async def test_stop__in_a_hurry__does_not_wait_for_the_grace(supervised: Supervised) -> None:
    stubborn = shell("rock", "trap '' TERM; echo ready; while :; do sleep 60; done", grace=1e6)
    async with supervised(stubborn) as supervisor:
        await supervisor.start()
        supervisor.hurry()
        async with asyncio.timeout(patience(30)):
            await supervisor.stop()


async def test_kill__service_with_children__leaves_none_beside_its_successor(
    supervised: Supervised, folder: DataFolder
) -> None:
    async with supervised(shell("pool", "sleep 77 & echo ready; wait")) as supervisor:
        await supervisor.start()
        up_id = environment_of(supervisor.identity("pool").pid)[UP_ID]
        eventually(lambda: len(leftovers(up_id)) == 2, within=5, what="the pool has a child")
        first = leftovers(up_id)

        killed = supervisor.identity("pool")
        await kill_and_see(killed)
        await restarted(folder, "pool", killed)

        assert set(leftovers(up_id)).isdisjoint(first)


async def test_zombie__parent_does_not_reap__counts_as_dead(supervised: Supervised) -> None:
    # The shell starts a child, turns into `sleep`, and never reaps it.
    script = "true & echo child $!; echo ready; exec sleep 60"
    async with supervised(shell("parent", script)) as supervisor:
        await supervisor.start()
        identity = supervisor.identity("parent")
        up_id = environment_of(identity.pid)[UP_ID]

        eventually(lambda: leftovers(up_id) == [identity], within=5, what="only the parent lives")


async def test_kill__again_and_again__is_restarted_every_time(
    supervised: Supervised, folder: DataFolder
) -> None:
    lines: list[str] = []
    async with supervised(shell("shaky", "echo ready; exec sleep 60"), lines=lines) as supervisor:
        await supervisor.start()

        for _ in range(2):
            killed = supervisor.identity("shaky")
            await kill_and_see(killed)
            await restarted(folder, "shaky", killed)

        pauses = [line.rpartition(" in ")[2] for line in lines if "SIGKILL" in line]
        assert pauses == ["0.01 s", "0.02 s"]
        assert not supervisor.failed.done()
