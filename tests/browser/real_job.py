"""A real market with a real checked job, while it runs and when it is over: for tests and pictures.

Processes, sockets, Postgres, Redis and the chain are those of `tallystick up`. Two stages of three
peers; one peer sends results of the step before. All is drawn, so that it does not depend on luck
who finds it. The job is longer than anybody looks: it ends because its poster cancels it, so no
machine is too slow or too fast.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from contracts.keys.store import load_or_create_wallet
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.bodies.routes import GET_CHECKS, GET_MONEY
from tallystick.sdk.watch import ask_job, until_over
from tests.support.patience import patience
from tests.support.stack import Stack, stack

PROVIDERS = ("ann", "bob", "cem", "dan", "eve", "fay")
LIAR = "ann"
LIE = "stale:from=2"
JOB: dict[str, Any] = {
    "name": "a checked job", "model": {"num_layers": 2}, "stages": 2, "peers_per_stage": 3,
    "checking": "on", "audit_rate": 1.0, "sum_audit_rate": 0.5, "repeat_rate": 0.0,
    "steps": 400, "units_per_step": 6, "budget": 4000, "vesting_window": 2,
}  # fmt: skip
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class RealJob:
    """The job, and the market that it is in."""

    running: Stack
    job: JobId

    @property
    def url(self) -> str:
        """Of the market."""
        return self.running.client.url

    def account(self, name: str) -> str:
        """A provider's account, in hex."""
        return load_or_create_wallet(self.running.folder / name / "wallet.json").account.hex()

    async def paid(self) -> str | None:
        """An honest account that has something claimed; None while nobody has."""
        known = {self.account(name) for name in PROVIDERS if name != LIAR}
        money = await self.running.client.call(GET_MONEY, job=self.job)
        found = (each.account.hex() for each in money.accounts if each.claimed)
        return next((account for account in found if account in known), None)

    async def has_all_to_show(self, *, within: float) -> None:
        """Wait until the liar is convicted and somebody is paid; the job still runs."""
        async with asyncio.timeout(patience(within)):
            while not (await self._is_anybody_convicted() and await self.paid()):
                view = await self.running.job(self.job)
                assert view.state != "failed", view.failure
                await asyncio.sleep(LOOK_SECONDS)

    async def cancel(self, *, within: float) -> None:
        """End it, and wait until what it earned is claimed."""
        client, now = self.running.client, UnixMillis(time.time_ns() // 10**6)
        operation = await ask_job(client, self.running.poster, self.job, "cancel", at=now)
        done = await until_over(
            client, operation.operation, within=timedelta(seconds=patience(within))
        )
        assert done.state == "done", done
        await self.running.settled(self.job, within=within)

    async def _is_anybody_convicted(self) -> bool:
        checks = await self.running.client.call(GET_CHECKS, job=self.job)
        return any(peer.convicted_at is not None for peer in checks.peers)


@asynccontextmanager
async def real_job(folder: Path, **changed: Any) -> AsyncIterator[RealJob]:
    """A market in `folder`, with the job in its second step; `changed` fields of its job file."""
    async with stack(folder, forked=True) as running:
        for name in PROVIDERS:
            running.start_provider(name, claim_at="0.01", lie=LIE if name == LIAR else "")
        job = (await running.submit(**(JOB | changed))).job
        await running.until(job, lambda view: view.progress.step >= 2, within=180)
        yield RealJob(running, job)
