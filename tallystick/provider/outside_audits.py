"""Auditing from outside: offers to, promises stake, and keeps an auditor running for each job.

What is signed is on disk before it leaves. The agent's heartbeats for its account ask the market
which jobs want stake of it, and which have listed it: exactly these are followed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.chain.contracts import Contracts
from contracts.chain.deployment import Deployment
from contracts.keys.wallet import Session, Wallet
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Expired, NotFound, Refused, Unavailable, WrongConfiguration
from contracts.terms.ids import NO_OFFER, JobId
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixMillis
from market.bodies.offers import AcceptLease, BondAsked, RegisterAuditor
from market.bodies.routes import POST_AUDITOR, POST_AUDITOR_BOND, POST_AUDITOR_HEARTBEAT
from market.bodies.signing import auditor_digest, auditor_subject
from tallystick.provider.background import Faults, Say, heartbeat
from tallystick.provider.coins import CoinWatches
from tallystick.provider.folder import (
    AuditFile,
    ProviderFolder,
    check_promise,
    load_accept,
    save_accept,
    save_audit_file,
)
from tallystick.sdk.client import MarketClient
from tallystick.up.child import Start
from tallystick.up.kept import keep

BEAT_SECONDS = 1.0


@dataclass
class OutsideAudits:
    """Of one provider at one market."""

    client: MarketClient
    folder: ProviderFolder
    wallet: Wallet
    device_class: str
    threads: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    say: Say
    faults: Faults
    start: Start
    auditors: dict[Path, "asyncio.Task[None]"] = field(default_factory=dict)

    async def run(
        self,
        deployment: Deployment,
        contracts: Contracts,
        coins: CoinWatches,
        adopt: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        """Offer to audit from outside, and follow the jobs that may draw us; until cancelled.

        Args:
            deployment: What is signed is for its chain.
            contracts: Read for the stake that is free.
            coins: Told which jobs to follow.
            adopt: Told of each auditor; what breaks it is to end the agent.
        """
        session, is_known = self.folder.audit_session(), False
        subject = auditor_subject(self.wallet.account)
        while True:
            try:
                if not is_known:
                    await self._register_auditor(session)
                    is_known = True
                beat = heartbeat(session, subject)
                told = await self.client.call(
                    POST_AUDITOR_HEARTBEAT, beat, account=self.wallet.account
                )
                if told.asked:
                    free = await self._free_stake(contracts)
                    await self._reserve(told.asked, free, session, deployment)
                await self._listed(told.jobs, coins, adopt)
                self.faults.over("audits")
            except NotFound:  # a market that was set up anew
                is_known = False
            except (Expired, Unavailable) as error:  # Expired: our clock is off
                self.faults.tell("audits", f"waiting: {error}")
            await asyncio.sleep(BEAT_SECONDS)

    async def _register_auditor(self, session: Session) -> None:
        at = UnixMillis(time.time_ns() // 1_000_000)
        said = auditor_digest(self.wallet.account, session.key, self.device_class, at)
        body = RegisterAuditor(
            account=self.wallet.account,
            session_key=session.key,
            device_class=self.device_class,
            at=at,
            signature=self.wallet.sign_digest(said),
        )
        registered = await self.client.call(POST_AUDITOR, body)
        self.say(f"auditing from outside with {format_tokens(registered.stake)} tokens at stake")

    async def _free_stake(self, contracts: Contracts) -> BaseUnits:
        head = await contracts.chain.head()
        return (await contracts.stakes.stake(self.wallet.account, head)).free

    async def _reserve(
        self,
        asked: tuple[BondAsked, ...],
        free: BaseUnits,
        session: Session,
        deployment: Deployment,
    ) -> None:
        """Promise stake to jobs that would list us, as far as what is free of it goes."""
        for bond in asked:
            if bond.stake > free:
                self.faults.tell(
                    f"bond {bond.job.hex()}",
                    f"job {bond.job.hex()[:12]} asks for more stake than is free",
                )
                continue
            free = BaseUnits(free - bond.stake)
            try:
                await self._promise(bond, session, deployment)
            except Refused as error:  # its list was fixed a moment ago
                self.faults.tell(
                    f"bond {bond.job.hex()}", f"stake for job {bond.job.hex()[:12]}: {error}"
                )

    async def _promise(self, bond: BondAsked, session: Session, deployment: Deployment) -> None:
        folder = self.folder.audit(bond.job)
        check_promise(folder, self.device_class)
        accept = load_accept(folder)
        if accept is None:
            accept = self.wallet.sign(self._bond_accept(bond, session), deployment.domain)
            save_accept(folder, accept)
        body = AcceptLease(signed=accept.encoded())
        await self.client.call(POST_AUDITOR_BOND, body, account=self.wallet.account)
        amount = format_tokens(bond.stake)
        self.say(f"reserves {amount} tokens to audit job {bond.job.hex()[:12]}")

    def _bond_accept(self, bond: BondAsked, session: Session) -> LeaseAccept:
        return LeaseAccept(
            job=bond.job,
            account=self.wallet.account,
            session_key=session.key,
            offer=NO_OFFER,
            price=bond.price,
            stake=bond.stake,
            device_class=self.device_class,
        )

    async def _listed(
        self,
        jobs: tuple[JobId, ...],
        coins: CoinWatches,
        adopt: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        """Follow exactly the jobs that may draw us."""
        folders = {self.folder.audit(job): job for job in jobs}
        known = {each for each in coins.folders if each.parent.name == "audits"}
        for folder in sorted(set(folders) - known):
            try:
                check_promise(folder, self.device_class)
            except WrongConfiguration as error:
                self.faults.tell(f"audit {folder.name}", f"job {folder.name[:12]}: {error}")
                continue
            coins.follow(folder, folders[folder])
            adopt(self._start_auditor(folder, folders[folder]))
        for folder in known - set(folders):
            coins.forget(folder)
            await cancelled(self.auditors.pop(folder))

    def _start_auditor(self, folder: Path, job: JobId) -> "asyncio.Task[None]":
        self.say(f"may be drawn in job {folder.name[:12]}")
        save_audit_file(folder, AuditFile(self.client.url, job.hex(), self.threads))
        kept = asyncio.create_task(
            keep(
                (*self.argv, str(folder)),
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
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(task, return_exceptions=True)
