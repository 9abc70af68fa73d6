"""One process that is kept running until its work is done: what a host and a provider need.

`up` supervises services, which never end by themselves. A coordinator or peer ends with
its job: exit status 0 means done. Any other end starts it again, with growing pauses; what it had
done is in its journal.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tallystick.up import child as children
from tallystick.up.child import Child, Start
from tallystick.up.spec import Backoff

GRACE_SECONDS = 10.0


async def keep(
    argv: tuple[str, ...],
    *,
    environment: Mapping[str, str],
    log: Path,
    say: Callable[[str], None],
    backoff: Backoff | None = None,
    start: Start = children.start,
    grace: float = GRACE_SECONDS,
) -> None:
    """Run `argv` until it exits with 0; when cancelled, stop it cleanly first; again: at once.

    Args:
        argv: Program and arguments; no secrets, other users see them.
        environment: All of its environment.
        log: Its output is appended here.
        say: Told of each restart.
        backoff: How long to wait before a restart.
        start: How it is started.
        grace: Seconds that it has to end by itself when it is stopped.
    """
    pauses = backoff or Backoff()
    failures = 0
    while True:
        began = time.monotonic()
        child = start(argv, environment=environment, log=log)
        try:
            await child.ended.wait()
        except asyncio.CancelledError:
            await _stop(child, grace)
            raise
        if child.exit_status == 0:
            return
        failures = pauses.failures(failures, ran_for=time.monotonic() - began)
        say(f"pid {child.identity.pid} {child.how_it_ended()}; log {log}")
        await asyncio.sleep(pauses.delay(failures))


async def _stop(child: Child, grace: float) -> None:
    try:
        await child.stop(signal.SIGTERM, grace=grace)
    except asyncio.CancelledError:
        child.send(signal.SIGKILL)  # our own end would kill it too, but not before it is set up
        raise
