"""The host: runs the coordinator of each job that the market leases to it.

It works through the API alone, so it may run on another machine. A row is its as long as it says
so in time; a job that is no longer in the answer was taken away or is over, and is stopped. Killed
and started again, it finds the same rows and the same folders. A coordinator whose messages the
market refuses is not started again before its poster asks something new of the job.
"""

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.keys.store import load_wallet, save_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.errors import Unavailable
from contracts.terms.ids import JobId
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import decode_signed, expect
from market.bodies.jobs import (
    MAX_REASON,
    CoordinatorClaim,
    HeededWish,
    HostedJob,
    HostHeartbeat,
    JobEndpoint,
    RegisterHost,
    StandingJob,
)
from market.bodies.routes import GET_NETWORK, POST_CLAIM, POST_HOST, POST_HOST_HEARTBEAT
from market.bodies.signing import hosting_digest
from tallystick.chains import chain_name, hold_for
from tallystick.host.folder import (
    JobFileOnHost,
    announced,
    heeded,
    prepare,
    standstill,
    tell_wish,
    wallet_path,
)
from tallystick.host.settings import HostSettings
from tallystick.sdk.client import MarketClient, retrying
from tallystick.up import child as children
from tallystick.up.child import Start
from tallystick.up.kept import keep
from training.coordinator.ports import Wish

BEAT_SECONDS = 1.0  # at least, between two looks for a job
WAIT_SECONDS = 5  # while it has none: the market answers at once when there may be one
HOSTING_SECONDS = 3.0  # while it hosts: wishes of posters come as late
SPARE_COORDINATORS = 4


@dataclass
class Host:
    """One host at one market."""

    client: MarketClient
    settings: HostSettings
    environment: Mapping[str, str]
    say: Callable[[str], None]
    start: Start = children.start
    _running: dict[JobId, "asyncio.Task[None]"] = field(default_factory=dict)
    _over: set[JobId] = field(default_factory=set)
    _told: dict[JobId, Wish] = field(default_factory=dict)  # what coordinators were handed
    _refused: dict[JobId, int] = field(default_factory=dict)  # with the wish that it was run by
    _said: HostHeartbeat | None = None  # to the market

    async def run(self) -> None:
        """Host jobs until cancelled; then their processes are stopped cleanly."""
        network = await retrying(lambda: self.client.call(GET_NETWORK), on_error=self._waiting)
        held = hold_for(self.settings.jobs, chain_name(network), ("*",), self.say)
        try:
            await retrying(self._register, on_error=self._waiting)
            self.say("ready")
            while True:
                begun = time.monotonic()
                try:
                    await self._beat()
                except Unavailable as error:
                    self._waiting(error)
                rest = begun + BEAT_SECONDS - time.monotonic()
                await asyncio.sleep(HOSTING_SECONDS if self._running else max(0.0, rest))
        finally:
            for job in list(self._running):
                await self._stop(job)
            held.close()

    async def _register(self) -> None:
        """Name all coordinators whose keys are here, and new ones while too few are free."""
        keys = self.settings.keys
        wallets = [load_wallet(path) for path in sorted((keys / "coordinators").glob("*.json"))]
        while not wallets or await self._claim_coordinators(wallets) < SPARE_COORDINATORS:
            wallet = Wallet(secrets.token_bytes(32))
            save_wallet(wallet_path(keys, wallet.account), wallet)
            wallets.append(wallet)

    async def _claim_coordinators(self, wallets: list[Wallet]) -> int:
        """How many of them no job has been promised yet."""
        claims = tuple(
            CoordinatorClaim(
                address=wallet.account,
                signature=wallet.sign_digest(
                    hosting_digest(self.settings.host_name, wallet.account)
                ),
            )
            for wallet in wallets
        )
        body = RegisterHost(coordinators=claims)
        return (await self.client.call(POST_HOST, body)).coordinators

    async def _beat(self) -> None:
        wait = 0 if self._running else WAIT_SECONDS
        held = (await self.client.call(POST_CLAIM, wait=wait)).jobs
        here = {hosted.job for hosted in held}
        for job in set(self._running) - here:
            await self._stop(job)
        self._refused = {job: wish for job, wish in self._refused.items() if job in here}
        for hosted in held:
            if hosted.job in self._running:
                self._tell_wish(hosted)
            elif hosted.job not in self._over and self._refused.get(hosted.job) != hosted.wish:
                self._start(hosted)
                await self._register()
        body = HostHeartbeat(
            jobs=tuple(self._running),
            endpoints=self._endpoints(),
            heeded=self._heeded(),
            standing=self._standing(),
        )
        if body != self._said:  # claiming keeps the jobs for another while, too
            await self.client.call(POST_HOST_HEARTBEAT, body)
            self._said = body

    def _endpoints(self) -> tuple[JobEndpoint, ...]:
        found = ((job, announced(self._folder(job))) for job in self._running)
        return tuple(JobEndpoint(job=job, address=address) for job, address in found if address)

    def _heeded(self) -> tuple[HeededWish, ...]:
        found = ((job, heeded(self._folder(job))) for job in self._running)
        return tuple(
            HeededWish(job=job, wish=number) for job, number in found if number is not None
        )

    def _standing(self) -> tuple[StandingJob, ...]:
        jobs = (*self._running, *self._refused)
        found = ((job, standstill(self._folder(job))) for job in jobs)
        return tuple(StandingJob(job=job, why=why[:MAX_REASON]) for job, why in found if why)

    def _tell_wish(self, hosted: HostedJob) -> None:
        """Hand the coordinator what its poster wants, if that is news."""
        wish = Wish(hosted.wish, hosted.wanted)
        if self._told.get(hosted.job) != wish:
            tell_wish(self._folder(hosted.job), wish)
            self._told[hosted.job] = wish

    def _folder(self, job: JobId) -> Path:
        return self.settings.jobs / job.hex()

    def _start(self, hosted: HostedJob) -> None:
        folder, settings = self._folder(hosted.job), self.settings
        spec = expect(decode_signed(hosted.spec), JobSpec)
        wallet = wallet_path(settings.keys, spec.message.coordinator)
        told = JobFileOnHost(
            self.client.url, hosted.job.hex(), str(wallet), settings.listen, hosted.opening_block
        )
        prepare(folder, told, hosted.spec, auditors=hosted.auditors)
        self._told.pop(hosted.job, None)
        self._refused.pop(hosted.job, None)
        self._tell_wish(hosted)
        self.say(f"hosting job {hosted.job.hex()[:12]}")
        self._running[hosted.job] = asyncio.create_task(self._keep(hosted.job, folder))

    async def _keep(self, job: JobId, folder: Path) -> None:
        """The coordinator until it is done."""
        try:
            await self._coordinate(folder)
            if why := standstill(folder):
                self._refused[job] = self._told[job].number
                self.say(f"job {job.hex()[:12]} stands still: {why}")
            else:
                self._over.add(job)
                self.say(f"job {job.hex()[:12]} is done")
        finally:
            self._running.pop(job, None)

    async def _coordinate(self, folder: Path) -> None:
        await keep(
            (sys.executable, "-m", "tallystick.coordinator", str(folder)),
            environment=self.environment,
            log=self.settings.jobs.parent / "logs" / f"coordinator-{folder.name[:12]}.log",
            say=self.say,
            start=self.start,
        )

    async def _stop(self, job: JobId) -> None:
        task = self._running.pop(job)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _waiting(self, error: Unavailable) -> None:
        self.say(f"waiting: {error}")
