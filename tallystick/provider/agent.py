"""The provider's agent: stakes, offers, binds itself to jobs, keeps their peers running, claims.

Everything it signs is on its disk before it leaves, and everything it does is safe to repeat, so
it may be killed at any moment: started again it finds the same wallet, offer and leases. A market
that does not answer is waited for; its peers go on working meanwhile. A lease that the market no
longer lets it keep is told of and left; what its owner has to mend ends it with one error. When it
is stopped its peers leave their jobs in order, for as long as `drain` allows. A lease whose peer
has left is not spoken for any more, so that the market buys its slot again. It reads the coins of
checked jobs from the chain for its peers, may offer itself as an outside auditor, and tells its
owner of convictions.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from contracts.chain.connection import Sender
from contracts.chain.contracts import Contracts
from contracts.chain.deployment import Deployment
from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session, Wallet
from contracts.terms.amounts import BaseUnits, PricePerPflop, format_tokens
from contracts.terms.errors import (
    ContractRefused,
    InsufficientStake,
    Misbehaved,
    NotFound,
    Refused,
    Unavailable,
)
from contracts.terms.ids import NO_OFFER, Digest, JobId
from contracts.terms.messages import LeaseAccept, Offer
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from market.api import schemas
from tallystick.provider.claims import Dues, claim
from tallystick.provider.coins import SETTLING_SECONDS, CoinWatches, Counts
from tallystick.provider.folder import (
    AuditFile,
    PeerFile,
    ProviderFolder,
    load_accept,
    save_accept,
    save_audit_file,
    save_peer_file,
)
from tallystick.provider.on_chain import on_chain
from tallystick.provider.slashes import Slashes
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.on_chain import deployment_of
from tallystick.sdk.submit import check_clock
from tallystick.up import child as children
from tallystick.up.child import Start
from tallystick.up.kept import keep
from training.tasks import first_error

HEARTBEAT_SECONDS = 1.0  # while it looks for work: a lease is answered this soon
LEASED_SECONDS = 7.0  # while it has work: a market waits for 15 s, so one may be lost
OFFER_BEATS = 6  # while it has work, the offer is asked after once in so many: nobody leases it
COIN_SECONDS = 2.0
CLAIM_SECONDS, SLASH_SECONDS = 5.0, 10.0  # between two looks, at least
LONGEST_LOOK = 60.0
WIND_DOWN_SECONDS = 60.0  # that a peer has after its lease is over
MIN_GAS_WEI = 10**17
ACTIVE = ("accepted", "active")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ask:
    """What the owner offers."""

    price: PricePerPflop
    stake: BaseUnits
    device_class: str
    memory_bytes: int
    flops_per_second: int
    bandwidth: int
    threads: int
    window: timedelta


@dataclass
class Agent:
    """One provider at one market."""

    client: MarketClient
    folder: ProviderFolder
    wallet: Wallet
    session: Session
    ask: Ask
    peer_argv: tuple[str, ...]
    environment: Mapping[str, str]
    say: Say
    start: Start = children.start
    drain: timedelta = timedelta(seconds=30)
    offers: bool = True  # its machine
    audits: bool = False  # from outside
    audit_argv: tuple[str, ...] = (sys.executable, "-m", "tallystick.provider.outside")
    monotonic: Callable[[], float] = time.monotonic
    _peers: dict[Digest, "asyncio.Task[None]"] = field(default_factory=dict)
    _auditors: dict[Path, "asyncio.Task[None]"] = field(default_factory=dict)
    _done: set[Digest] = field(default_factory=set)
    _over_since: dict[Digest, float] = field(default_factory=dict)
    _told: str = ""
    _tasks: asyncio.TaskGroup | None = None
    _coins: CoinWatches | None = None

    async def run(self) -> None:
        """Offer and work until cancelled; then the peers leave. Cancelled again, they are ended."""
        network = await retrying(self.client.network, on_error=self._waiting)
        check_clock(network.clock, UnixSeconds(int(time.time())))
        deployment = deployment_of(network)
        try:
            async with on_chain(network, self.wallet, self.folder.transactions) as own:
                contracts, sender = own.contracts, own.sender
                is_theirs = contracts.chain.need_chain
                await retrying(lambda: is_theirs(network.chain_id), on_error=self._waiting)
                await retrying(
                    lambda: self._prepare(network, contracts, sender), on_error=self._waiting
                )
                settling = SETTLING_SECONDS if network.embedded else 0.0
                counts = Counts(network.confirmations, settling)
                self._coins = CoinWatches(self.client, contracts, counts, time.time)
                epoch = look_every(network.parameters["epoch_length"], least=CLAIM_SECONDS)
                window = look_every(network.parameters["announcement_window"], least=SLASH_SECONDS)
                with first_error():
                    async with asyncio.TaskGroup() as tasks:
                        self._tasks = tasks
                        if self.offers:
                            tasks.create_task(self._heartbeats(deployment))
                        if self.audits:
                            tasks.create_task(self._audits(deployment, contracts))
                        tasks.create_task(self._read_coins(self._coins))
                        tasks.create_task(self._claims(contracts, sender, epoch))
                        tasks.create_task(self._watch_slashes(window))
        finally:
            await self._stop_peers()

    # ------------------------------------------------------------------------ stake and offer

    async def _prepare(
        self, network: schemas.NetworkView, contracts: Contracts, sender: Sender
    ) -> None:
        """Gas, tokens and stake, as far as they are missing."""
        await sender.resend()
        head = await contracts.chain.head()
        staked = await contracts.stakes.stake(self.wallet.account, head)
        missing = BaseUnits(max(0, self.ask.stake - staked.active))
        held = await contracts.token.balance(self.wallet.account, head)
        gas = await contracts.chain.balance(self.wallet.account)
        if (gas < MIN_GAS_WEI or held < missing) and network.embedded:
            key = f"faucet-{self.wallet.account.hex()}-{head.number}"
            try:
                await self.client.faucet(self.wallet.account, idempotency_key=key)
            except Refused as error:  # what is held may be enough
                self.say(f"faucet: {error}")
            head = await contracts.chain.head()
            held = await contracts.token.balance(self.wallet.account, head)
        if held < missing:
            raise InsufficientStake(
                f"0x{self.wallet.account.hex()} holds {format_tokens(held)} tokens and "
                f"{format_tokens(missing)} more are to be staked: send tokens to this account "
                "or lower --stake",
                wanted=missing,
                free=held,
            )
        if missing:
            await self._stake(contracts, sender, missing)

    async def _stake(self, contracts: Contracts, sender: Sender, amount: BaseUnits) -> None:
        # The keys name the nonce they would get, so that topping up again is another intention.
        number = await contracts.chain.nonce(self.wallet.account)
        call = contracts.token.approve(contracts.stakes.address, amount)
        await sender.send(f"approve:{number}:{amount}", call)
        await sender.send(f"stake:{number}:{amount}", contracts.stakes.add(amount))
        self.say(f"staked {format_tokens(amount)} tokens")

    async def _standing_offer(self, deployment: Deployment) -> Signed[Offer]:
        """The stored offer while it stands or is leased, else a new one in its place; posted."""
        return await retrying(lambda: self._post_offer(deployment), on_error=self._waiting)

    async def _post_offer(self, deployment: Deployment) -> Signed[Offer]:
        offer = self.folder.offer()
        if offer is None or not (self._is_asked(offer) or await self._was_leased(offer)):
            offer = self.wallet.sign(self._new_offer(int(time.time())), deployment.domain)
            self.folder.save_offer(offer)
        stored = await self.client.post_offer(offer.encoded())
        said = offer.message
        if not stored.takes_checked_jobs:
            self._tell(
                "no checked job takes this machine: the market's calibration table does not hold "
                f"{said.device_class} against two other devices"
            )
        self.say(
            f"offering at {format_tokens(said.price)} tokens/PFLOP as 0x{said.account.hex()}"
            f" for {_window(said)}"
        )
        return offer

    def _is_asked(self, offer: Signed[Offer]) -> bool:
        """Whether it stands, and its owner has not taken it back from another terminal."""
        return self._stands(offer) and not self.folder.is_withdrawn(offer)

    def _stands(self, offer: Signed[Offer]) -> bool:
        """Whether it says what is asked now, and more than half of its window is left."""
        said = offer.message
        left = timedelta(seconds=said.expires_at - time.time())
        return left > self.ask.window / 2 and (
            (self.ask.price, self.ask.device_class, self.ask.memory_bytes, self.ask.window)
            == (said.price, said.device_class, said.memory_bytes, _window(said))
        )

    async def _was_leased(self, offer: Signed[Offer]) -> bool:
        """Take an offer back; whether it was leased before that, so that it is still worked for."""
        name = offer.message.digest()
        signature = self.session.private_key.sign(schemas.withdrawal_digest(name))
        try:
            await self.client.withdraw_offer(name, schemas.Withdrawal(signature=signature))
            return bool(await self._heartbeat(offer))
        except NotFound:  # a market that was set up anew
            return False

    def _new_offer(self, now: int) -> Offer:
        return Offer(
            account=self.wallet.account,
            session_key=self.session.key,
            nonce=time.time_ns() // 1000,
            price=self.ask.price,
            device_class=self.ask.device_class,
            memory_bytes=self.ask.memory_bytes,
            flops_per_second=self.ask.flops_per_second,
            bandwidth=self.ask.bandwidth,
            available_from=UnixSeconds(now),
            expires_at=UnixSeconds(now + int(self.ask.window.total_seconds())),
        )

    # --------------------------------------------------------------------------------- leases

    async def _heartbeats(self, deployment: Deployment) -> None:
        offer = await self._standing_offer(deployment)
        leases: tuple[schemas.LeaseView, ...] = ()
        beats = 0  # since it was last without work
        while True:
            try:
                if beats % OFFER_BEATS:
                    leases = await self._speak_for(leases)
                else:
                    leases = await self._heartbeat(offer)
                    await self._follow(leases, deployment)
                    if not (leases or self._stands(offer) or self.folder.is_withdrawn(offer)):
                        offer = await self._standing_offer(deployment)
            except NotFound:  # a market that was set up anew
                offer, leases = await self._standing_offer(deployment), ()
            except Unavailable as error:
                self._waiting(error)
                leases = ()
            is_at_work = any(lease.state == "active" for lease in leases)
            beats = beats + 1 if is_at_work else 0
            await asyncio.sleep(LEASED_SECONDS if is_at_work else HEARTBEAT_SECONDS)

    async def _speak_for(
        self, leases: tuple[schemas.LeaseView, ...]
    ) -> tuple[schemas.LeaseView, ...]:
        """Say that peers are alive; answers with their leases, none once one needs a look."""
        working = [each for each in leases if each.lease not in self._done]
        try:
            heard = [await self._beat(each.lease) for each in working]
        except Refused:
            return ()
        return tuple(
            each.model_copy(update={"state": now.state})
            for each, now in zip(working, heard, strict=True)
        )

    async def _heartbeat(self, offer: Signed[Offer]) -> tuple[schemas.LeaseView, ...]:
        name = offer.message.digest()
        return (await self.client.heartbeat_offer(name, _heartbeat(self.session, name))).leases

    async def _follow(self, leases: tuple[schemas.LeaseView, ...], deployment: Deployment) -> None:
        for lease in leases:
            try:
                await self._hold(lease, deployment)
            except Refused as error:  # it lapsed, or was taken away, a moment ago
                self._tell(f"lease {lease.lease.hex()[:12]}: {error}")
        now, over = self.monotonic(), set(self._peers) - {lease.lease for lease in leases}
        # A lease that came back is over no more, and has all of its time when it ends.
        self._over_since = {name: self._over_since.get(name, now) for name in over}
        for name, since in self._over_since.items():
            # Over, and its peer knows best when it has nothing left to do.
            if now - since > WIND_DOWN_SECONDS:
                await self._stop_peer(name)

    async def _hold(self, lease: schemas.LeaseView, deployment: Deployment) -> None:
        """Accept a lease that is new, say that one's peer is alive, and see to it that it is."""
        if lease.lease in self._done:
            return
        if lease.state == "reserved":
            await self._accept(lease, deployment)
        if lease.state in ACTIVE:
            await self._beat(lease.lease)
            self._start_peer(lease)

    async def _beat(self, lease: Digest) -> schemas.LeaseHeard:
        session = load_or_create_session(self.folder.lease(lease) / "session.key")
        return await self.client.heartbeat_lease(lease, _heartbeat(session, lease))

    async def _accept(self, lease: schemas.LeaseView, deployment: Deployment) -> None:
        folder = self.folder.lease(lease.lease)
        session = load_or_create_session(folder / "session.key")
        accept = load_accept(folder)
        if accept is None:
            accept = self.wallet.sign(self._lease_accept(lease, session), deployment.domain)
            save_accept(folder, accept)
        body = schemas.AcceptLease(signed=accept.encoded())
        await self.client.accept_lease(lease.lease, body)
        self.say(f"accepted job {lease.job.hex()[:12]} at {format_tokens(lease.price)} per PFLOP")

    def _lease_accept(self, lease: schemas.LeaseView, session: Session) -> LeaseAccept:
        if lease.price < self.ask.price:
            raise Refused(f"lease {lease.lease.hex()}: pays less than the ask")
        return LeaseAccept(
            job=lease.job,
            account=self.wallet.account,
            session_key=session.key,
            offer=lease.offer,
            price=lease.price,
            stake=lease.stake,
            device_class=self.ask.device_class,
        )

    # ---------------------------------------------------------------------------------- peers

    def _start_peer(self, lease: schemas.LeaseView) -> None:
        if lease.lease in self._peers or lease.lease in self._done:
            return
        assert self._tasks is not None
        folder = self.folder.lease(lease.lease)
        peer = PeerFile(
            self.client.url,
            lease.job.hex(),
            lease.lease.hex(),
            self.ask.threads,
            self.ask.bandwidth,
        )
        save_peer_file(folder, peer)
        if self._coins is not None:
            self._coins.follow(folder, lease.job)
        kept = asyncio.create_task(self._keep_peer(lease.lease, folder))
        self._peers[lease.lease] = kept
        # What breaks it ends the agent; what ends the agent lets it leave in order.
        self._tasks.create_task(_outcome(kept))

    async def _keep_peer(self, lease: Digest, folder: Path) -> None:
        self.say(f"peer of lease {lease.hex()[:12]} starts")
        await keep(
            (*self.peer_argv, str(folder)),
            environment=self.environment,
            log=self.folder.log(lease),
            say=self.say,
            start=self.start,
            grace=self.drain.total_seconds(),
        )
        self._done.add(lease)
        self._peers.pop(lease, None)
        if self._coins is not None:
            self._coins.forget(folder)
        self.say(f"peer of lease {lease.hex()[:12]} is done")

    async def _stop_peer(self, lease: Digest) -> None:
        task = self._peers.pop(lease, None)
        if task is None:
            return  # it ended by itself while others were being stopped
        await _cancelled(task)

    async def _stop_peers(self) -> None:
        if self._peers:
            seconds = self.drain.total_seconds()
            self.say(f"peers leave their jobs, within {seconds:.0f} s; again to end them at once")
        leaving = [self._stop_peer(lease) for lease in list(self._peers)]
        leaving += [_cancelled(task) for task in self._auditors.values()]
        await asyncio.gather(*leaving)

    # ------------------------------------------------------------------------ coins and audits

    async def _read_coins(self, coins: CoinWatches) -> None:
        while True:
            for folder in coins.folders:
                try:
                    await coins.look(folder)
                except Unavailable as error:
                    self._waiting(error)
                except (Refused, Misbehaved) as error:  # nothing of it counts; asked again
                    self._tell(f"coins for {folder.name[:12]}: {error}")
            await asyncio.sleep(COIN_SECONDS)

    async def _audits(self, deployment: Deployment, contracts: Contracts) -> None:
        """Offer to audit from outside, and follow the jobs that may draw us."""
        session, is_known = self.folder.audit_session(), False
        subject = schemas.auditor_subject(self.wallet.account)
        while True:
            try:
                if not is_known:
                    await self._register_auditor(session)
                    is_known = True
                beat = _heartbeat(session, subject)
                told = await self.client.heartbeat_auditor(self.wallet.account, beat)
                if told.asked:
                    free = await self._free_stake(contracts)
                    await self._reserve(told.asked, free, session, deployment)
                await self._listed(told.jobs)
            except NotFound:  # a market that was set up anew
                is_known = False
            except Unavailable as error:
                self._waiting(error)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _register_auditor(self, session: Session) -> None:
        at = UnixMillis(time.time_ns() // 1_000_000)
        said = schemas.auditor_digest(self.wallet.account, session.key, self.ask.device_class, at)
        body = schemas.RegisterAuditor(
            account=self.wallet.account,
            session_key=session.key,
            device_class=self.ask.device_class,
            at=at,
            signature=self.wallet.sign_digest(said),
        )
        registered = await self.client.register_auditor(body)
        self.say(f"auditing from outside with {format_tokens(registered.stake)} tokens at stake")

    async def _free_stake(self, contracts: Contracts) -> BaseUnits:
        head = await contracts.chain.head()
        return (await contracts.stakes.stake(self.wallet.account, head)).free

    async def _reserve(
        self,
        asked: tuple[schemas.BondAsked, ...],
        free: BaseUnits,
        session: Session,
        deployment: Deployment,
    ) -> None:
        """Promise stake to jobs that would list us, as far as what is free of it goes."""
        for bond in asked:
            if bond.stake > free:
                self._tell(f"job {bond.job.hex()[:12]} asks for more stake than is free")
                continue
            free = BaseUnits(free - bond.stake)
            try:
                await self._promise(bond, session, deployment)
            except Refused as error:  # its list was fixed a moment ago
                self._tell(f"stake for job {bond.job.hex()[:12]}: {error}")

    async def _promise(
        self, bond: schemas.BondAsked, session: Session, deployment: Deployment
    ) -> None:
        folder = self.folder.audit(bond.job)
        accept = load_accept(folder)
        if accept is None:
            accept = self.wallet.sign(self._bond_accept(bond, session), deployment.domain)
            save_accept(folder, accept)
        body = schemas.AcceptLease(signed=accept.encoded())
        await self.client.accept_bond(self.wallet.account, body)
        amount = format_tokens(bond.stake)
        self.say(f"reserves {amount} tokens to audit job {bond.job.hex()[:12]}")

    def _bond_accept(self, bond: schemas.BondAsked, session: Session) -> LeaseAccept:
        return LeaseAccept(
            job=bond.job,
            account=self.wallet.account,
            session_key=session.key,
            offer=NO_OFFER,
            price=bond.price,
            stake=bond.stake,
            device_class=self.ask.device_class,
        )

    async def _listed(self, jobs: tuple[JobId, ...]) -> None:
        """Follow exactly the jobs that may draw us."""
        assert self._coins is not None
        folders = {self.folder.audit(job): job for job in jobs}
        known = {each for each in self._coins.folders if each.parent.name == "audits"}
        for folder in sorted(set(folders) - known):
            self._coins.follow(folder, folders[folder])
            self._start_auditor(folder, folders[folder])
        for folder in known - set(folders):
            self._coins.forget(folder)
            await _cancelled(self._auditors.pop(folder))

    def _start_auditor(self, folder: Path, job: JobId) -> None:
        assert self._tasks is not None
        self.say(f"may be drawn in job {folder.name[:12]}")
        save_audit_file(folder, AuditFile(self.client.url, job.hex(), self.ask.threads))
        kept = asyncio.create_task(
            keep(
                (*self.audit_argv, str(folder)),
                environment=self.environment,
                log=self.folder.audit_log(job),
                say=self.say,
                start=self.start,
            )
        )
        self._auditors[folder] = kept
        self._tasks.create_task(_outcome(kept))

    async def _watch_slashes(self, seconds: float) -> None:
        slashes = Slashes(self.client, self.folder.home, self.wallet.account, self.say)
        while True:
            busy = {self.folder.lease(lease) for lease in self._peers}
            busy |= {folder for folder, task in self._auditors.items() if not task.done()}
            try:
                await slashes.look(busy)
            except Unavailable as error:
                self._waiting(error)
            except (Refused, OSError) as error:  # asked again; nothing else of the agent needs it
                self._tell(f"slashes: {error}")
            await asyncio.sleep(seconds)

    # ---------------------------------------------------------------------------------- claims

    async def _claims(self, contracts: Contracts, sender: Sender, seconds: float) -> None:
        dues = Dues(self.client, self.wallet.account)
        while True:
            try:
                await self._claim(dues, contracts, sender)
            except Unavailable as error:
                self._waiting(error)
            except ContractRefused as error:  # a newer epoch became final in between
                self._tell(f"claim: {error}")
            await asyncio.sleep(seconds)

    async def _claim(self, dues: Dues, contracts: Contracts, sender: Sender) -> None:
        head = await contracts.chain.head()
        due = await dues.look(await contracts.settlement.claimed(self.wallet.account, head))
        if due is not None:
            await claim(due, contracts, sender)
            self.say(f"claimed {format_tokens(due.amount)} tokens of epoch {due.proof.epoch}")

    def _waiting(self, error: Unavailable) -> None:
        self._tell(f"waiting: {error}")

    def _tell(self, line: str) -> None:
        """Say it once: what is tried each second fails each second."""
        if line != self._told:
            self._told = line
            self.say(line)


def look_every(period: int, *, least: float) -> float:
    """Seconds between two looks at what happens once in `period` seconds of the chain."""
    return max(least, min(LONGEST_LOOK, period / 2))


async def _outcome(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _window(offer: Offer) -> timedelta:
    return timedelta(seconds=offer.expires_at - offer.available_from)


def _heartbeat(session: Session, subject: Digest) -> schemas.Heartbeat:
    at = UnixMillis(time.time_ns() // 1_000_000)
    signature = session.private_key.sign(schemas.heartbeat_digest(subject, at))
    return schemas.Heartbeat(at=at, signature=signature)
