"""Auditing from outside: offers to, bonds stake, and keeps an auditor running for each job.

What is signed is on disk before it leaves. The agent's heartbeats for its account ask the market
which jobs want stake of it, and which have listed it: exactly these are followed.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contracts.governance.escrow import EscrowTimes
from contracts.keys.wallet import Session
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import (
    Expired,
    Malformed,
    NotFound,
    Refused,
    Unavailable,
    WrongConfiguration,
)
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.bodies.offers import BondAsked, PostBond, RegisterAuditor
from market.bodies.routes import GET_JOB, POST_AUDITOR, POST_AUDITOR_BOND, POST_AUDITOR_HEARTBEAT
from market.bodies.signing import auditor_digest, auditor_subject
from tallystick.provider.background import Faults, Say, heartbeat
from tallystick.provider.beacons import BeaconWatches
from tallystick.provider.folder import (
    AuditFile,
    ProviderFolder,
    jobs_in,
    load_audit_file,
    note_working,
    save_audit_file,
    save_signed,
)
from tallystick.provider.limits import leaf_of
from tallystick.provider.machine import check_class
from tallystick.provider.money import bond_for
from tallystick.sdk.client import MarketClient
from tallystick.sdk.on_chain import OnChain
from tallystick.sdk.orders import signed_spec
from tallystick.up.child import Start
from tallystick.up.kept import keep

BEAT_SECONDS = 1.0


@dataclass
class OutsideAudits:
    """Of one provider at one market."""

    client: MarketClient
    folder: ProviderFolder
    device_class: str
    threads: int
    environment: Mapping[str, str]
    say: Say
    faults: Faults
    start: Start
    auditors: dict[Path, "asyncio.Task[None]"] = field(default_factory=dict)
    jobs: frozenset[JobId] = frozenset()  # that may draw us
    own: OnChain = field(init=False)  # signs bonds, and is read for the stake that is free
    times: EscrowTimes = field(init=False)
    beacons: BeaconWatches = field(init=False)  # told which jobs to follow

    async def run(self, adopt: Callable[["asyncio.Task[None]"], None]) -> None:
        """Offer to audit from outside, and follow the jobs that may draw us; until cancelled.

        `adopt` is told of each auditor; what breaks it is to end the agent.
        """
        session, is_known = self.folder.audit_session(), False
        subject = auditor_subject(self.own.wallet.account)
        while True:
            try:
                if not is_known:
                    await self._register_auditor(session)
                    is_known = True
                beat = heartbeat(session, subject)
                told = await self.client.call(
                    POST_AUDITOR_HEARTBEAT, beat, account=self.own.wallet.account
                )
                for asked in told.asked:
                    await self._back(asked)
                self.jobs = frozenset(told.jobs)
                await self._listed(await self._paid(told.jobs), adopt)
                self.faults.over("audits")
            except NotFound:  # a market that was set up anew
                is_known = False
            except (Expired, Unavailable) as error:  # Expired: our clock is off
                self.faults.tell("audits", f"waiting: {error}")
            await asyncio.sleep(BEAT_SECONDS)

    async def _register_auditor(self, session: Session) -> None:
        at = UnixMillis(time.time_ns() // 1_000_000)
        said = auditor_digest(self.own.wallet.account, session.key, self.device_class, at)
        body = RegisterAuditor(
            account=self.own.wallet.account,
            session_key=session.key,
            device_class=self.device_class,
            at=at,
            signature=self.own.wallet.sign_digest(said),
        )
        registered = await self.client.call(POST_AUDITOR, body)
        self.say(f"auditing from outside; {format_tokens(registered.free)} tokens are free to bond")

    async def _back(self, asked: BondAsked) -> None:
        """Bond stake in a job that would list us, if as much is free."""
        # Too little may be free, or its list was fixed a moment ago.
        job = asked.job.hex()
        with self.faults.telling(f"bond {job}", f"stake for job {job[:12]}", (Refused,)):
            await self._bond(asked)

    async def _bond(self, asked: BondAsked) -> None:
        folder, job = self.folder.audit(asked.job), asked.job
        self._check_device(folder)
        spec = signed_spec((await self.client.call(GET_JOB, job=job)).signed, job)
        bond = await bond_for(self.own, self.times, folder, job, asked.stake)
        if bond is None:
            return  # it is on chain, and the market will see it
        save_signed(folder, spec)
        save_audit_file(folder, self._audit_file(job))
        body = PostBond(bond=bond.encoded())
        await self.client.call(POST_AUDITOR_BOND, body, account=self.own.wallet.account)
        self.say(f"bonds {format_tokens(asked.stake)} tokens to audit job {job.hex()[:12]}")

    def _audit_file(self, job: JobId) -> AuditFile:
        return AuditFile(self.client.url, job.hex(), self.threads, self.device_class)

    def _check_device(self, folder: Path) -> None:
        """Refuse a job that we backed as another device class than our own.

        Raises:
            WrongConfiguration: it was backed by another machine with this home, or before torch was
                upgraded.
        """
        with contextlib.suppress(Malformed):  # we have not backed it yet
            check_class(load_audit_file(folder).device_class, self.device_class)

    async def _paid(self, jobs: Sequence[JobId]) -> tuple[JobId, ...]:
        """Of the jobs that a market names, those in which the chain says that audits can be paid.

        Raises:
            Unavailable: the chain does not answer.
        """
        account = self.own.wallet.account
        known = {job: each for each in jobs_in(self.folder.home) if (job := each.job) in jobs}
        if not known:
            return ()
        contracts = self.own.contracts
        places = [(job, account) for job in known]
        channels = await contracts.escrow.channels(places, await contracts.chain.head())
        found = list[JobId]()
        for job, each in sorted(known.items()):
            channel, earned = channels[job, account], leaf_of(each.pay(account), account).earned
            if channel.stake and not channel.end and earned < channel.limit:
                found.append(job)
                self.faults.over(f"unpaid {job.hex()}")
            else:
                self.faults.tell(
                    f"unpaid {job.hex()}",
                    f"job {job.hex()[:12]} may draw us, and could not pay: it waits for our bond, "
                    "for a limit, or our account has ended there",
                )
        return tuple(found)

    async def _listed(
        self, jobs: tuple[JobId, ...], adopt: Callable[["asyncio.Task[None]"], None]
    ) -> None:
        """Follow exactly the jobs that may draw us, and can pay us."""
        folders = {self.folder.audit(job): job for job in jobs}
        known = {each for each in self.beacons.folders if each.parent.name == "audits"}
        for folder in sorted(set(folders) - known):
            try:
                self._check_device(folder)
            except WrongConfiguration as error:
                self.faults.tell(f"audit {folder.name}", f"job {folder.name[:12]}: {error}")
                continue
            self.beacons.follow(folder, folders[folder])
            adopt(self._start_auditor(folder, folders[folder]))
        for folder in known - set(folders):
            self.beacons.forget(folder)
            await cancelled(self.auditors.pop(folder))

    def _start_auditor(self, folder: Path, job: JobId) -> "asyncio.Task[None]":
        self.say(f"may be drawn in job {folder.name[:12]}")
        save_audit_file(folder, self._audit_file(job))
        note_working(folder)
        kept = asyncio.create_task(
            keep(
                (sys.executable, "-m", "tallystick.provider.outside", str(folder)),
                environment=self.environment,
                log=self.folder.audit_log(job),
                say=self.say,
                start=self.start,
            )
        )
        self.auditors[folder] = kept
        return kept

    async def stop(self) -> None:
        """End all auditors."""
        await asyncio.gather(*(cancelled(task) for task in self.auditors.values()))


async def cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel a task once (a second time would hurry a peer) and wait for its end, however it ends.

    What broke it is raised where it was adopted.
    """
    task.cancel()
    await ended(task)


async def ended(task: "asyncio.Task[None]") -> None:
    """Wait for the end of a task that was cancelled; cancelled meanwhile, it is hurried."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(task, return_exceptions=True)
