"""A child that is executed and one that is forked are the same to everybody; and their ends."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import ServiceUnreachable
from tallystick.up import child as children
from tallystick.up.child import Child, Start
from tallystick.up.forking import FORKSERVER
from tallystick.up.forkserver import Forkserver, launch
from tallystick.up.kept import keep
from tallystick.up.processes import SERVICE, environment_of, identify, is_alive
from tallystick.up.spec import Backoff
from tests.integration.up.running import eventually
from tests.support.patience import patience
from tests.support.stack import is_stopped

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": str(ROOT),
    SERVICE: "shown",
    "TALLYSTICK_RUN_ID": "run of a test",
    "LONG": "z" * 20_000,
}


@pytest.fixture
async def forkserver(tmp_path: Path) -> AsyncIterator[Forkserver]:
    """A forkserver that has imported nothing."""
    own = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{tmp_path}", SERVICE: "forkserver"}
    server = await launch(environment=own, log=tmp_path / "server.log", preloaded=())
    yield server
    await server.stop()


@pytest.fixture(params=["executed", "forked"])
def start(request: pytest.FixtureRequest) -> Start:
    """Both ways to start a child."""
    if request.param == "executed":
        return children.start
    forked: Start = request.getfixturevalue("forkserver").start
    return forked


def words(file: Path, how: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.showing", str(file), how)


async def shown(start: Start, folder: Path, how: str) -> tuple[Child, dict[str, Any]]:
    file = folder / "shown.json"
    child = start(words(file, how), environment=ENVIRONMENT, log=folder / "child.log")
    async with asyncio.timeout(patience(20)):
        while not file.exists():
            assert not child.ended.is_set(), child.last_words()
            await asyncio.sleep(0.01)
    return child, json.loads(file.read_text())


async def test_start__any_way__is_a_leader_with_its_own_environment_and_descriptors(
    start: Start, tmp_path: Path
) -> None:
    child, seen = await shown(start, tmp_path, "wait")

    expected = dict(ENVIRONMENT)
    assert {name: seen["environment"].get(name) for name in expected} == expected
    # LC_CTYPE is Python's own, on a C locale; whoever is forked can have others forked
    assert set(seen["environment"]) - set(expected) <= {"LC_CTYPE", FORKSERVER}
    assert seen["arguments"] == [str(tmp_path / "shown.json"), "wait"]
    assert seen["folder"] == os.getcwd()
    assert seen["is_leader"] and seen["terminates"] and seen["input"] == ""
    assert seen["death_signal"] == signal.SIGKILL
    descriptors = 4 if FORKSERVER in seen["environment"] else 3
    assert (seen["descriptors"], seen["umask"]) == (descriptors, 0o077)
    assert child.log.read_text().splitlines() == ["on output", "on error"]
    assert child.log.stat().st_mode & 0o777 == 0o600
    pid = child.identity.pid  # what others see of it
    said = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    assert said == list(words(tmp_path / "shown.json", "wait"))
    assert {name: environment_of(pid).get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert identify(pid) == child.identity
    await child.stop(signal.SIGKILL, grace=5)


@pytest.mark.parametrize(("how", "status"), [("exit:7", 7), ("fail", 1)])
async def test_start__it_ends__its_exit_status_is_known(
    start: Start, how: str, status: int, tmp_path: Path
) -> None:
    child, _ = await shown(start, tmp_path, how)
    async with asyncio.timeout(patience(20)):
        await child.ended.wait()

    assert child.exit_status == status
    assert ("ValueError: told to fail" in child.last_words()) == (how == "fail")
    assert not is_alive(child.identity)
    child.send(signal.SIGTERM)  # to nobody


async def test_stop__any_way__says_by_which_signal_it_ended(start: Start, tmp_path: Path) -> None:
    child, _ = await shown(start, tmp_path, "wait")

    assert await child.stop(signal.SIGTERM, grace=10)

    assert child.exit_status == -signal.SIGTERM
    assert child.how_it_ended() == "was ended by SIGTERM"


async def test_keep__any_way__starts_again_until_it_exits_with_0(
    start: Start, tmp_path: Path
) -> None:
    said: list[str] = []

    async with asyncio.timeout(patience(30)):
        await keep(
            words(tmp_path / "shown.json", "third"),
            environment=ENVIRONMENT,
            log=tmp_path / "log",
            say=said.append,
            backoff=Backoff(first=0.01),
            start=start,
        )

    assert len(said) == 2 and all("exited with 9" in line for line in said)


async def test_keep__cancelled_again_while_the_child_hangs__ends_it_at_once(
    start: Start, tmp_path: Path
) -> None:
    born: list[Child] = []

    def stopped_at_birth(
        argv: tuple[str, ...], *, environment: Mapping[str, str], log: Path
    ) -> Child:
        born.append(start(argv, environment=environment, log=log))
        born[0].send(signal.SIGSTOP)  # perhaps before it has asked to end with us
        while not is_stopped(
            born[0].identity.pid
        ):  # else a SIGTERM that comes meanwhile is taken first
            os.sched_yield()
        return born[0]

    keeping = asyncio.create_task(
        keep(
            words(tmp_path / "shown.json", "wait"),
            environment=ENVIRONMENT,
            log=tmp_path / "log",
            say=lambda line: None,
            start=stopped_at_birth,
            grace=3600,
        )
    )
    async with asyncio.timeout(patience(20)):
        for _ in range(2):
            await asyncio.sleep(0)  # it begins, or hears of the first one
            keeping.cancel()
        await asyncio.wait([keeping])
        await born[0].ended.wait()

    assert keeping.cancelled()
    assert born[0].exit_status == -signal.SIGKILL


# ------------------------------------------------------------------------------- forked alone


async def test_forkserver__killed__takes_its_children_with_it(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    child, _ = await shown(forkserver.start, tmp_path, "wait")

    forkserver.child.send(signal.SIGKILL)
    async with asyncio.timeout(patience(10)):
        await child.ended.wait()

    assert child.exit_status == -signal.SIGKILL
    eventually(lambda: not is_alive(child.identity), within=5, what="the child is dead")
    with pytest.raises(ServiceUnreachable):
        forkserver.start(words(tmp_path / "f", "wait"), environment={}, log=tmp_path / "log")


async def test_forkserver__who_asked_is_gone__its_child_is_killed_and_nobody_elses(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    (tmp_path / "asker.py").write_text(
        "import asyncio, os, pathlib, sys\n"
        "from tallystick.up.forkserver import starter\n"
        "async def main():\n"
        "    start = starter(int(os.environ['TALLYSTICK_FORKSERVER']))\n"
        "    child = start(tuple(sys.argv[2:]), environment={}, log=pathlib.Path(sys.argv[1]))\n"
        "    print(child.identity.pid, flush=True)\n"
        "    await child.ended.wait()\n"
        "asyncio.run(main())\n"
    )
    other, _ = await shown(forkserver.start, tmp_path, "wait")
    file = tmp_path / "of_the_asker.json"
    argv = (sys.executable, "-m", "asker", str(tmp_path / "l"), *words(file, "wait"))
    asker = forkserver.start(argv, environment=ENVIRONMENT, log=tmp_path / "asker.log")
    async with asyncio.timeout(patience(20)):
        while not (file.exists() and asker.has_said("\n")):  # the child may be there first
            assert not asker.ended.is_set(), asker.last_words()
            await asyncio.sleep(0.01)
    child = identify(int(asker.log.read_text()))
    assert child is not None

    await asker.stop(signal.SIGKILL, grace=5)

    eventually(lambda: not is_alive(child), within=5, what="the child is dead")
    assert is_alive(other.identity)
    await other.stop(signal.SIGKILL, grace=5)


async def test_launch__module_that_does_not_exist__is_an_error_with_its_last_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(ServiceUnreachable, match="No module named 'nothing_of_this_name'"):
        await launch(
            environment={"PYTHONPATH": str(ROOT)},
            log=tmp_path / "log",
            preloaded=("nothing_of_this_name",),
        )


async def test_launch__module_that_starts_a_thread__is_refused(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    with pytest.raises(ServiceUnreachable, match="2 threads after the imports"):
        await launch(
            environment={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
            log=tmp_path / "log",
            preloaded=("threaded",),
        )
