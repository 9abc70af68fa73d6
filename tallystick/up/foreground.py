"""`up` in a terminal: start, show, wait for Ctrl-C or SIGTERM, stop in order.

The first signal stops cleanly; a second one does not wait for slow services any more.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path

from contracts.http_clients import ask_directly
from market.bodies.base import Body
from tallystick.up.child import start_detached
from tallystick.up.data_folder import (
    DataFolder,
    open_data_folder,
    read_json,
    take_lock,
)
from tallystick.up.ports import LOOPBACK
from tallystick.up.processes import Identity, Ticks, is_alive, scrubbed
from tallystick.up.stack import Services
from tallystick.up.supervisor import Report

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_SECONDS = 0.05


class Ready(Body):
    """Services that have started, and where they are reached; empty: they run elsewhere."""

    seconds: float
    api: str
    chain: str
    data: str  # folder
    listen: str = ""  # address of this machine that others are told; empty: none

    def lines(self) -> list[str]:
        """The same for people, with what they do on the other machines of this network."""
        places = [f"ready in {self.seconds:.1f} s"]
        places += [
            f"{name} {url}" for name, url in (("API", self.api), ("chain", self.chain)) if url
        ]
        line = "   ".join([*places, f"data {self.data}"])
        if not (self.listen and self.api):
            return [line]
        return [
            line,
            f"on another machine:   tallystick provider start --market {self.api} --ask 1000",
            "plain HTTP, for a private network only: no wallet's secret travels, but anybody on "
            "the network can read, and alter, what is served",
        ]


def forget_defaults(listen: str = "") -> None:
    """Take PG* variables out of this process, as its children get none either.

    Its own address `listen` is asked without a proxy.
    """
    if listen:
        ask_directly(listen)
    for name in set(os.environ) - set(scrubbed(dict(os.environ))):
        if not name.startswith("TALLYSTICK_"):
            del os.environ[name]


async def serve(services: Services, report: Report, ready: Callable[[Ready], None]) -> None:
    """Run until a signal comes; `ready` is told when everything has started.

    Raises:
        TallystickError: the services cannot be started, or cannot be kept running.
    """
    began = time.monotonic()
    asked = _listen(services, report)
    starting = asyncio.create_task(services.start())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    try:
        starting.result()
        where = services.addresses
        ready(
            Ready(
                seconds=time.monotonic() - began,
                api=where.shown_api,
                chain=where.rpc,
                data=str(services.folder.home),
                listen=where.listen,
            )
        )
        failing = asyncio.create_task(services.wait_failed())
        await asyncio.wait({failing, asked}, return_when=asyncio.FIRST_COMPLETED)
        await services.stop()
        if failing.done():
            failing.result()
        failing.cancel()
    finally:
        asked.cancel()


def _listen(services: Services, report: Report) -> "asyncio.Task[bool]":
    asked = asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            services.hurry()
        else:
            report("stopping")
            asked.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return asyncio.create_task(asked.wait())


def run_detached(
    home: Path, *, port: int | None, only: Collection[str], report: Report, listen: str = ""
) -> Ready | int:
    """Start `up` in a session of its own and follow its log until it is ready.

    Returns:
        What is ready, else the exit code that it ended with.

    Raises:
        Conflict: another `up` has the folder.
    """
    began, folder = time.monotonic(), open_data_folder(home)
    os.close(take_lock(folder))  # nobody has it
    arguments = ["up", "--home", str(folder.home)]
    arguments += ["--port", str(port)] if port is not None else []
    arguments += ["--only", ",".join(only)] if only else []
    arguments += ["--listen", listen] if listen else []
    process, start = start_detached(arguments, log=folder.log("up"))
    ended = _follow(process, folder, start, report)
    if ended is not None:
        return ended
    told = read_json(folder.environment)
    api, chain = (str(told.get(f"TALLYSTICK_{name}_URL", "")) for name in ("API", "RPC"))
    api = api.replace(LOOPBACK, listen) if listen else api
    spent, data = time.monotonic() - began, str(folder.home)
    return Ready(seconds=spent, api=api, chain=chain, data=data, listen=listen)


def _follow(
    process: "subprocess.Popen[bytes]", folder: DataFolder, start: int, report: Report
) -> int | None:
    with folder.log("up").open(encoding="utf-8", errors="replace") as lines:
        lines.seek(start)
        while True:
            ended = process.poll()
            said = read_json(folder.up)
            ready = said.get("pid") == process.pid and said.get("state") == "ready"
            for line in lines:
                report(line.rstrip("\n"))
            if ready or ended is not None:
                return ended
            time.sleep(_POLL_SECONDS)


def running_up(folder: DataFolder) -> Identity | None:
    """The process that runs `up` in the folder now."""
    said = read_json(folder.up)
    pid, start_time = said.get("pid"), said.get("start_time")
    if not isinstance(pid, int) or not isinstance(start_time, int):
        return None
    identity = Identity(pid, Ticks(start_time))
    return identity if is_alive(identity) else None


def wait_ended(identity: Identity, *, within: float) -> bool:
    """Whether the process ends within that many seconds."""
    deadline = time.monotonic() + within
    while is_alive(identity):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
