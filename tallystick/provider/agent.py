"""The provider's agent: deposits, offers, binds itself to jobs, keeps their peers running, claims.

Everything it signs is on its disk before it leaves, and everything it does is safe to repeat, so
it may be killed at any moment: started again it finds the same wallet, offer and leases. A market
that does not answer is waited for; its peers go on working meanwhile. A lease that the market no
longer lets it keep is told of and left; what its owner has to mend ends it with one error. When it
is stopped its peers leave their jobs in order, for as long as `drain` allows. A lease whose peer
has left is not spoken for any more, so that the market buys its slot again. Where the disk lacks
room it says so and stands back in the same way: its peers leave, its offer is withdrawn until there
is room. Folders of leases that are over are cleared. A peer runs only while the chain, read by
ourselves, says that its work can be paid (`limits`); else it waits, or leaves, and a line says why.
The agent reads the beacons of checked jobs from the chain for its peers, may offer itself as an
outside auditor, and tells its owner of convictions.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from contracts.governance.escrow import EscrowTimes
from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session, Wallet
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits, PricePerPflop, format_tokens
from contracts.terms.escrow_messages import Bond
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec, LeaseAccept, Offer
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.base import SignedBody
from market.bodies.money import PostOrder
from market.bodies.offers import AcceptLease, LeaseHeard, LeaseView, Withdrawal
from market.bodies.routes import (
    DELETE_OFFER,
    GET_JOB,
    GET_NETWORK,
    POST_ACCEPT,
    POST_LEASE_HEARTBEAT,
    POST_OFFER,
    POST_OFFER_HEARTBEAT,
    POST_ORDER,
)
from market.bodies.signing import withdrawal_digest
from tallystick.chains import chain_name
from tallystick.provider.background import (
    Clocks,
    Faults,
    Say,
    aftermath,
    heartbeat,
    interruption,
    read_clocks,
)
from tallystick.provider.beacons import SETTLING_SECONDS, BeaconWatches, Counts
from tallystick.provider.disk import Free, LeaseFolders, Room, folder_bytes, free_bytes, megabytes
from tallystick.provider.folder import (
    KEPT_OF_CHAIN,
    OwnJob,
    PeerFile,
    ProviderFolder,
    agent_session,
    check_promise,
    jobs_in,
    last_upload,
    load_pay,
    load_signed,
    note_working,
    quits_until,
    save_peer_file,
    save_signed,
)
from tallystick.provider.limits import Guard, Idleness, check_tail, ends_work, round_seconds
from tallystick.provider.machine import LEAST_MEMORY, Machine, told
from tallystick.provider.money import HAS_QUIT, Money, bond_for, prepare
from tallystick.provider.outside_audits import OutsideAudits, cancelled, ended
from tallystick.provider.slashes import Losses, Slashes
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.on_chain import OnChain, on_chain
from tallystick.sdk.orders import signed_spec
from tallystick.sdk.submit import check_clock
from tallystick.up import child as children
from tallystick.up.child import Start
from tallystick.up.kept import keep
from training.disk import lease_disk
from training.tasks import first_error

HEARTBEAT_SECONDS = 1.0  # while a lease or the market has to be looked at
WAIT_SECONDS = 5  # while it looks for work: the market answers at once when a lease comes
LEASED_SECONDS = 7.0  # while it has work: a market waits for 15 s, so one may be lost
OFFER_BEATS = 6  # while it has work, the offer is asked after once in so many: nobody leases it
BEACON_SECONDS = 2.0
CLAIM_SECONDS, SLASH_SECONDS = 5.0, 5.0  # between two looks, at least
ACCUSED_SECONDS = 1.0  # the same, while a slash of our own is under way
LIMIT_SECONDS = 1.0  # between two looks whether peers may work
PATIENCE_SECONDS = 20.0  # with a grant that is on its way, before its owner is told
WATCH_SECONDS = 1.0  # between two looks at the clocks
ROOM_SECONDS, CLEAR_SECONDS = 2.0, 60.0
LONGEST_LOOK = 60.0
LOOKS_A_TAIL = 7  # at the chain while nothing is to be done
WIND_DOWN_SECONDS = 60.0  # that a peer has after its lease is over
UPLOAD_SECONDS = 600.0  # that it has for each part of the weights that it still uploads
CLAIM_AT = BaseUnits(10_000_000)
"""What is worth a transaction while a job goes on."""
HEARD = ("accepted", "active")
"""States of a lease for which heartbeats count."""


@dataclass(frozen=True)
class Ask:
    """What the owner offers."""

    price: PricePerPflop
    stake: BaseUnits
    device_class: str  # of `device`
    memory_bytes: int
    flops_per_second: int
    bandwidth: int
    threads: int
    window: timedelta
    device: str = "cpu"
    claim_at: BaseUnits = CLAIM_AT


@dataclass
class Agent:
    """One provider at one market."""

    client: MarketClient
    folder: ProviderFolder
    wallet: Wallet
    ask: Ask
    environment: Mapping[str, str]
    say: Say
    start: Start = children.start
    drain: timedelta = timedelta(seconds=30)
    offers: bool = True  # its machine
    audits: bool = False  # from outside
    monotonic: Callable[[], float] = time.monotonic
    free: Free = free_bytes
    clocks: Callable[[], Clocks] = read_clocks
    machine: Machine | None = None  # what it shares with other agents; None: nothing
    rpc: str | None = None  # node of its owner; None: the one that the market names
    _peers: dict[Digest, "asyncio.Task[None]"] = field(default_factory=dict)
    _done: set[Digest] = field(default_factory=set)
    _jobs: dict[Digest, JobId] = field(default_factory=dict)  # of leases that had a peer
    _over_since: dict[Digest, float] = field(default_factory=dict)
    _paused: Digest | None = None  # the offer that we took back ourselves
    _tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _chain: str = ""  # of the market, as it was when we began
    _own: OnChain = field(init=False)
    _times: EscrowTimes = field(init=False)
    _guard: Guard = field(init=False)
    _beacons: BeaconWatches = field(init=False)
    _active: dict[Digest, LeaseView] = field(default_factory=dict)  # for which a peer may run
    _started: dict[Digest, LeaseView] = field(default_factory=dict)  # whose peer runs
    _leaving: set[Digest] = field(default_factory=set)  # leases whose peer is being stopped
    _waits_since: dict[Digest, float] = field(default_factory=dict)  # see `_is_overdue`
    _held: frozenset[JobId] | None = None  # jobs of our leases; None: the market has not said

    def __post_init__(self) -> None:
        """Nothing is looked at yet."""
        # What computes is what is offered, whatever the environment says.
        self.environment = {**self.environment, **told(self.ask.device)}
        self.session = agent_session(self.folder.home)
        self.faults = Faults(self.say, self.monotonic)
        self._woken = asyncio.Event()
        self._interruption = ""  # told once the market has answered after it
        self.room = Room(self.folder.home, free=self.free, monotonic=self.monotonic)
        self.outside = OutsideAudits(
            self.client,
            self.folder,
            self.ask.device_class,
            self.ask.threads,
            self.environment,
            self.say,
            self.faults,
            self.start,
        )

    async def run(self) -> None:
        """Offer and work until cancelled; then the peers leave. Cancelled again, they are ended."""
        network = await retrying(lambda: self.client.call(GET_NETWORK), on_error=self._waiting)
        self.faults.over("market")
        check_clock(network.clock, UnixSeconds(int(time.time())))
        self._chain = chain_name(network)
        if self.rpc is not None:
            network = network.model_copy(update={"rpc_url": self.rpc})
        try:
            async with contextlib.AsyncExitStack() as stack:
                enter, home = stack.enter_async_context, self.folder.home
                own = await retrying(
                    lambda: enter(on_chain(network, self.wallet, home, self.say, KEPT_OF_CHAIN)),
                    on_error=self._waiting,
                )
                await retrying(lambda: self._prepare(own), on_error=self._waiting)
                times = await retrying(lambda: times_of(own), on_error=self._waiting)
                settling = SETTLING_SECONDS if network.embedded else 0.0
                self.stand_on(own, times, Counts(network.confirmations, settling))
                money = Money(self.client, own, times, self.ask.claim_at, self.say, self.monotonic)
                with first_error():
                    async with self._tasks as tasks:
                        if self.offers:
                            tasks.create_task(self._heartbeats())
                            tasks.create_task(self._watch_clocks())
                        if self.audits:
                            tasks.create_task(self.outside.run(self._adopt))
                        tasks.create_task(self._read_beacons())
                        tasks.create_task(self._watch_limits())
                        tasks.create_task(self._settle(money))
                        slashes = Slashes(self.client, home, self.wallet.account, self.say)
                        tasks.create_task(self._watch_slashes(slashes))
                        tasks.create_task(self._every(SLASH_SECONDS, "evidence", slashes.show))
                        over = "folders of leases that are over"
                        tasks.create_task(self._every(CLEAR_SECONDS, over, self._clear_folders))
        finally:
            await self._stop_peers()
            if self.machine is not None:
                self.machine.close()

    def stand_on(self, own: OnChain, times: EscrowTimes, counts: Counts) -> None:
        """Go by this chain from now on."""
        self._own, self._times = own, times
        self._guard = Guard(self.wallet.account, own.contracts, self.monotonic)
        self._beacons = BeaconWatches(self.client, own.contracts, counts, time.time)
        self.outside.own, self.outside.times, self.outside.beacons = own, times, self._beacons

    @property
    def _domain(self) -> Domain:
        return self._own.contracts.deployment.domain

    # ---------------------------------------------------------------------------------- offer

    async def _prepare(self, own: OnChain) -> None:
        jobs = jobs_in(self.folder.home, unsettled=True)
        await prepare(self.client, self.ask.stake, jobs, own, self.say)

    async def _standing_offer(self) -> Signed[Offer]:
        """The stored offer while it stands or is leased, else a new one in its place; posted."""
        while not self._takes_share():
            await asyncio.sleep(HEARTBEAT_SECONDS)
        offer = await retrying(self._post_offer, on_error=self._waiting)
        self.faults.over("market")
        return offer

    def _takes_share(self) -> bool:
        """Ask for what is fair of the machine now; whether it is worth an offer."""
        if self.machine is None:
            return True
        try:
            share = self.machine.offer()
        except errors.Unavailable as error:
            self.faults.tell("share", f"waiting: {error}")
            return False
        if share.memory < LEAST_MEMORY:
            self.faults.tell(
                "share",
                f"{megabytes(share.memory)} of memory are left here beside our own processes and "
                "other agents: waiting until there is more",
            )
            return False
        self.faults.over("share")
        speed = self.machine.speed(self.ask.threads)
        self.ask = replace(self.ask, memory_bytes=share.memory, flops_per_second=speed)
        return True

    async def _post_offer(self) -> Signed[Offer]:
        offer = load_signed(self.folder.home, Offer)
        if offer is None or not (self._is_asked(offer) or await self._was_leased(offer)):
            offer = self.wallet.sign(self._new_offer(int(time.time())), self._domain)
            save_signed(self.folder.home, offer)
        stored = await self.client.call(POST_OFFER, SignedBody(signed=offer.encoded()))
        said = offer.message
        if not stored.takes_checked_jobs:
            self.faults.tell(
                "class",
                "no checked job takes this machine: the market's calibration table does not hold "
                f"{said.device_class} against two other devices",
            )
        account = f"0x{said.account.hex()}"
        if stored.withdrawn:
            self._paused = said.digest()
            self.say(f"{account} goes on with its lease; offered anew when that is over")
        else:
            self.say(
                f"offering at {format_tokens(said.price)} tokens/PFLOP as {account}"
                f" for {_window(said)}"
            )
        return offer

    def _is_asked(self, offer: Signed[Offer]) -> bool:
        """Whether it stands, and neither its owner nor we have taken it back."""
        is_back = self.folder.is_withdrawn(offer) or offer.message.digest() == self._paused
        return self._stands(offer) and not is_back

    def _has_to_be_renewed(self, offer: Signed[Offer]) -> bool:
        """Whether another takes its place once it is not leased; not if its owner took it back."""
        return not (self._is_asked(offer) or self.folder.is_withdrawn(offer))

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
        try:
            await self._take_back(offer.message.digest())
            return bool(await self._heartbeat(offer))
        except errors.NotFound:  # a market that was set up anew
            return False

    async def _take_back(self, offer: Digest) -> None:
        signature = self.session.private_key.sign(withdrawal_digest(offer))
        await self.client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=offer)

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

    async def _heartbeats(self) -> None:
        offer = await self._standing_offer()
        leases: tuple[LeaseView, ...] = ()
        beats = 0  # since it was last without work
        while True:
            begun = self.monotonic()
            try:
                if (lacks := self.room.lacks()) is not None:
                    await self._stand_back(offer, lacks)
                    leases, beats = (), 0
                if beats % OFFER_BEATS and not self._interruption:
                    leases = await self._send_heartbeats(leases)
                else:
                    wait = 0 if leases or beats or self._interruption else WAIT_SECONDS
                    leases = await self._heartbeat(offer, wait)
                    self._tell_interruption(leases)
                    await self._follow(leases)
                    if not leases:
                        offer = await self._kept_up(offer)
                self.faults.over("market")
            except errors.NotFound:  # a market that was set up anew
                await self._need_same_chain()
                offer, leases = await self._standing_offer(), ()
            except (errors.Expired, errors.Unavailable) as error:  # Expired: our clock is off
                self._waiting(error)
                leases = ()
            is_at_work = any(lease.state == "active" for lease in leases)
            beats = beats + 1 if is_at_work else 0
            rest = begun + HEARTBEAT_SECONDS - self.monotonic()
            await self._pause(LEASED_SECONDS if is_at_work else rest)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until this machine has slept."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def _watch_clocks(self) -> None:
        before = self.clocks()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            after = self.clocks()
            if (what := interruption(before, after, WATCH_SECONDS)) is not None:
                self._interruption = what
                self._woken.set()
            before = after

    def _tell_interruption(self, leases: tuple[LeaseView, ...]) -> None:
        """Say what happened and what it did, in one sentence, when the market has answered."""
        if self._interruption:
            live = [each.lease for each in leases if each.state in HEARD]
            self.say(f"{self._interruption}: {aftermath(self._peers, live)}")
            self._interruption = ""

    async def _kept_up(self, offer: Signed[Offer]) -> Signed[Offer]:
        """The offer, or the one in its place if it has to be renewed or our share has changed."""
        if not self._takes_share():
            self._paused = offer.message.digest()
            await self._withdraw(offer)
        if self._has_to_be_renewed(offer):
            return await self._standing_offer()
        return offer

    async def _need_same_chain(self) -> None:
        network = await retrying(lambda: self.client.call(GET_NETWORK), on_error=self._waiting)
        if chain_name(network) != self._chain:
            raise errors.Conflict(
                f"{self.client.url} is on another chain since we began: start again, what is kept "
                "of the old one is then put aside"
            )

    async def _stand_back(self, offer: Signed[Offer], lacks: str) -> None:
        """Take the offer back and let all peers leave; until there is room again."""
        self.faults.tell("disk", f"{lacks}: the offer is withdrawn, peers leave their jobs")
        self._paused = offer.message.digest()
        await asyncio.gather(self._withdraw(offer), self._let_peers_go())
        while (lacks_now := self.room.lacks()) is not None:
            self.faults.tell("disk", lacks_now)
            # An agent that answers has given its leases up in order: none is held against it.
            with contextlib.suppress(errors.NotFound, errors.Unavailable):
                await self._heartbeat(offer)
            await asyncio.sleep(ROOM_SECONDS)
        self.faults.over("disk")

    async def _withdraw(self, offer: Signed[Offer]) -> None:
        try:
            await retrying(lambda: self._take_back(offer.message.digest()), on_error=self._waiting)
        except errors.NotFound:  # a market that was set up anew
            return

    async def _let_peers_go(self) -> None:
        """All peers leave in order; their leases are not spoken for any more."""
        self._done |= set(self._peers)
        await asyncio.gather(*(self._stop_peer(lease) for lease in list(self._peers)))

    async def _send_heartbeats(self, leases: tuple[LeaseView, ...]) -> tuple[LeaseView, ...]:
        """Heartbeats of all leases at work; their leases, or none if the market refuses one."""
        working = [each for each in leases if each.lease not in self._done]
        try:
            heard = [await self._send_heartbeat(each.lease) for each in working]
        except errors.Refused:
            return ()
        return tuple(
            each.model_copy(update={"state": now.state})
            for each, now in zip(working, heard, strict=True)
        )

    async def _heartbeat(
        self, offer: Signed[Offer], wait_seconds: int = 0
    ) -> tuple[LeaseView, ...]:
        name, client = offer.message.digest(), self.client
        beat = heartbeat(self.session, name)
        return (await client.call(POST_OFFER_HEARTBEAT, beat, offer=name, wait=wait_seconds)).leases

    async def _follow(self, leases: tuple[LeaseView, ...]) -> None:
        self._held = frozenset(lease.job for lease in leases if lease.lease not in self._done)
        active = [
            each for each in leases if each.state == "active" and each.lease not in self._done
        ]
        self._active = {each.lease: each for each in active}
        for lease in leases:
            named = f"lease {lease.lease.hex()}"
            # It may have lapsed, or been taken away, a moment ago.
            with self.faults.telling(named, named[:18], (errors.Refused,)):
                await self._follow_lease(lease)
        now, over = self.monotonic(), set(self._peers) - {lease.lease for lease in leases}
        # A lease that came back is over no more, and has all of its time when it ends.
        self._over_since = {name: self._over_since.get(name, now) for name in over}
        for name, since in self._over_since.items():
            # Over, and its peer knows best when it has nothing left to do.
            if now - since > WIND_DOWN_SECONDS and not self._uploads(name):
                await self._stop_peer(name)

    async def _follow_lease(self, lease: LeaseView) -> None:
        """Accept a new lease; speak for an accepted one; keep the peer of an active one running."""
        if lease.lease in self._done:
            return
        if lease.lease not in self._peers:
            check_promise(self.folder.lease(lease.lease), self.ask.device_class)
        if lease.state == "reserved":
            await self._accept_lease(lease)
        if lease.state == "accepted":
            await self._bond_again(lease)
        if lease.state in HEARD:
            await self._send_heartbeat(lease.lease)
        if lease.state == "active":
            await self._keep_within_limits(lease)

    async def _send_heartbeat(self, lease: Digest) -> LeaseHeard:
        session = load_or_create_session(self.folder.lease(lease) / "session.key")
        return await self.client.call(POST_LEASE_HEARTBEAT, heartbeat(session, lease), lease=lease)

    async def _accept_lease(self, lease: LeaseView) -> None:
        folder = self.folder.lease(lease.lease)
        spec = spec_of(lease)
        self.room.need(lease_disk(spec), held=folder_bytes(folder))
        if self.machine is not None and spec.memory_bytes > self.machine.share.memory:
            raise errors.Refused(
                "other agents on this machine hold memory that it was offered with"
            )
        session = load_or_create_session(folder / "session.key")
        accept = load_signed(folder, LeaseAccept)
        if accept is None:
            view = await self.client.call(GET_JOB, job=lease.job)
            check_tail(spec, self._times, round_seconds(view.reports))
            accept = self.wallet.sign(self._lease_accept(lease, session), self._domain)
            save_signed(folder, accept)
        save_signed(folder, signed_spec(lease.spec, lease.job))
        bond = await bond_for(self._own, self._times, folder, lease.job, lease.stake)
        body = AcceptLease(accept=accept.encoded(), bond=None if bond is None else bond.encoded())
        await self.client.call(POST_ACCEPT, body, lease=lease.lease)
        self.say(f"accepted job {lease.job.hex()[:12]} at {format_tokens(lease.price)} per PFLOP")

    async def _bond_again(self, lease: LeaseView) -> None:
        """Sign another Bond, where the one that the market has was not sent while it counted."""
        folder = self.folder.lease(lease.lease)
        kept = load_signed(folder, Bond)
        if kept is None or kept.message.by >= await self._own.contracts.chain.next_time():
            return
        bond = await bond_for(self._own, self._times, folder, lease.job, lease.stake)
        if bond is not None:
            await self.client.call(POST_ORDER, PostOrder(signed=bond.encoded()), job=lease.job)
            self.say(f"signed its bond in job {lease.job.hex()[:12]} again: nobody sent it in time")

    def _lease_accept(self, lease: LeaseView, session: Session) -> LeaseAccept:
        if lease.price < self.ask.price:
            raise errors.Refused(f"lease {lease.lease.hex()}: pays less than the ask")
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

    async def _watch_limits(self) -> None:
        while True:
            await self._look_at_limits()
            await asyncio.sleep(LIMIT_SECONDS)

    async def _look_at_limits(self) -> None:
        """Of each peer that runs, whatever the market says of its lease by now, and that may."""
        for lease in list((self._active | self._started).values()):
            await self._keep_within_limits(lease)

    async def _keep_within_limits(self, lease: LeaseView) -> None:
        """Keep the peer of an active lease running, but only while its work can be paid."""
        name, fault = lease.lease, f"limits {lease.job.hex()}"
        lease = self._started.get(name, lease)  # as it was when its peer began
        if name in self._done:
            return
        try:
            idle = await self._why_idle(lease)
        except errors.Refused as error:  # its file of pay is damaged: its peer writes it anew
            self.faults.tell(f"pay {name.hex()}", str(error))
            return
        if idle is None or idle.may_stay:
            self._ensure_peer_running(lease)
        about = f"job {lease.job.hex()[:12]}"
        if idle is None:
            self._waits_since.pop(name, None)
            self.faults.over(fault)
        elif name in self._peers and not idle.may_stay:
            self.faults.tell(fault, f"our peer leaves {about} for now: {idle.why}")
            self._let_leave(name)
        elif self._is_overdue(name):
            self.faults.tell(fault, f"no work comes in {about}: {idle.why}")

    async def _why_idle(self, lease: LeaseView) -> Idleness | None:
        pay, spec = load_pay(self.folder.lease(lease.lease)), spec_of(lease)
        # When no work is left its peer still audits and publishes, though we may have quit by then.
        is_over = pay is not None and ends_work(pay.seal.message, spec)
        if not is_over and await self._has_quit(lease.job):
            return Idleness(HAS_QUIT)
        leases = (self._active | self._started).values()
        here = [each for each in leases if each.job == lease.job] or [lease]
        return await self._guard.why_idle(
            spec,
            pay,
            stake=max(each.stake for each in here),
            prices=[each.price for each in here],
        )

    async def _has_quit(self, job: JobId) -> bool:
        """Whether a Quit of ours may still be sent, by whoever holds it."""
        if not (until := quits_until(self.folder.home, job)):
            return False
        try:
            return until >= await self._own.contracts.chain.next_time()
        except (errors.Refused, errors.Unavailable):
            return True

    def _is_overdue(self, lease: Digest) -> bool:
        """Whether a peer waits, to start or for work, for longer than a grant usually takes."""
        since = self._waits_since.setdefault(lease, self.monotonic())
        return self.monotonic() - since >= PATIENCE_SECONDS

    def _let_leave(self, lease: Digest) -> None:
        """Stop a peer in order, in the background; it may start again when that is done."""
        if lease not in self._leaving:
            self._leaving.add(lease)
            task = self._peers[lease]
            task.add_done_callback(lambda _: self._forget_peer(lease))
            task.cancel()

    def _forget_peer(self, lease: Digest) -> None:
        self._leaving.discard(lease)
        self._started.pop(lease, None)
        self._peers.pop(lease, None)

    def _ensure_peer_running(self, lease: LeaseView) -> None:
        if lease.lease in self._peers or lease.lease in self._done | self._leaving:
            return
        folder, spec = self.folder.lease(lease.lease), spec_of(lease)
        if self.machine is not None:
            self.machine.work(spec.memory_bytes)
        peer = PeerFile(
            self.client.url,
            lease.job.hex(),
            lease.lease.hex(),
            self.ask.threads,
            self.ask.bandwidth,
            lease_disk(spec),
        )
        save_peer_file(folder, peer)
        note_working(folder)
        self._jobs[lease.lease] = lease.job
        self._beacons.follow(folder, lease.job)
        kept = asyncio.create_task(self._keep_peer(lease.lease, folder))
        self._peers[lease.lease], self._started[lease.lease] = kept, lease
        self._adopt(kept)

    def _adopt(self, kept: "asyncio.Task[None]") -> None:
        """What breaks it ends the agent; what ends the agent lets it leave in order."""
        self._tasks.create_task(_outcome(kept))

    async def _keep_peer(self, lease: Digest, folder: Path) -> None:
        self.say(f"peer of lease {lease.hex()[:12]} starts")
        await keep(
            (sys.executable, "-m", "tallystick.provider.peer", str(folder)),
            environment=self.environment,
            log=self.folder.log(lease),
            say=lambda line: self.faults.tell(f"peer {lease.hex()}", line),
            start=self.start,
            grace=self.drain.total_seconds(),
        )
        self._done.add(lease)
        self._forget_peer(lease)
        self._beacons.forget(folder)
        self.say(f"peer of lease {lease.hex()[:12]} is done")

    def _uploads(self, lease: Digest) -> bool:
        """Whether a part of its weights has reached the market a moment ago."""
        since = last_upload(self.folder.lease(lease))
        return since is not None and since < UPLOAD_SECONDS

    async def _stop_peer(self, lease: Digest) -> None:
        self._started.pop(lease, None)
        task = self._peers.pop(lease, None)
        if task is None:
            return  # it ended by itself while others were being stopped
        await (ended(task) if lease in self._leaving else cancelled(task))

    async def _stop_peers(self) -> None:
        if self._peers:
            seconds = self.drain.total_seconds()
            self.say(f"peers leave their jobs, within {seconds:.0f} s; again to end them at once")
        leaving = [self._stop_peer(lease) for lease in list(self._peers)]
        await asyncio.gather(self.outside.stop(), *leaving)

    # ----------------------------------------------------------------- beacons, slashes and folders

    async def _read_beacons(self) -> None:
        while True:
            for folder in self._beacons.folders:
                with self.faults.telling(
                    f"beacons {folder.name}", f"beacons for {folder.name[:12]}"
                ):
                    await self._beacons.look(folder)
            await asyncio.sleep(BEACON_SECONDS)

    async def _every(self, seconds: float, what: str, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            with self.faults.telling(what, what):
                await look()
            await asyncio.sleep(seconds)

    async def _watch_slashes(self, slashes: Slashes) -> None:
        losses = Losses(self.client, self.wallet.account, self.say)
        while True:
            over = set(self._jobs) - set(self._peers)
            with self.faults.telling("slashes", "slashes"):  # nothing else of the agent needs them
                await slashes.look()
                await losses.look(set(self._jobs.values()))
                for lease in over:  # its last seals were looked at after its peer had ended
                    self._jobs.pop(lease)
            least = ACCUSED_SECONDS if slashes.is_accused else SLASH_SECONDS
            await asyncio.sleep(look_every(self._times.announce, least=least))

    async def _clear_folders(self) -> None:
        await LeaseFolders(self.client, self.folder.home).clear(self._is_at_work_in)

    def _is_at_work_in(self, folder: Path) -> bool:
        auditor = self.outside.auditors.get(folder)
        is_auditing = auditor is not None and not auditor.done()
        return is_auditing or any(folder.name == lease.hex() for lease in self._peers)

    # ----------------------------------------------------------------------------------- money

    async def _settle(self, money: Money) -> None:
        """Claim, show and quit, as far as that is due; soon again while something may be."""
        while True:
            seconds = look_every(self._times.tail // LOOKS_A_TAIL, least=CLAIM_SECONDS)
            is_soon = True
            with self.faults.telling("claims", "waiting to claim"):
                jobs = jobs_in(self.folder.home, unsettled=True)
                is_soon = await money.look(jobs, self._live_of(jobs))
            await asyncio.sleep(CLAIM_SECONDS if is_soon else seconds)

    def _live_of(self, jobs: Sequence[OwnJob]) -> set[JobId]:
        """Jobs in which a machine of ours works or may: all, until the market has answered."""
        if self.offers and self._held is None:
            return {each.job for each in jobs}
        at_work = {self._jobs[lease] for lease in self._peers if lease in self._jobs}
        return at_work | self.outside.jobs | (self._held or frozenset())

    def _waiting(self, error: errors.Expired | errors.Unavailable) -> None:
        self.faults.tell("market", f"waiting: {error}")


def spec_of(lease: LeaseView) -> JobSpec:
    """The job of a lease; raises as `signed_spec`."""
    return signed_spec(lease.spec, lease.job).message


async def times_of(own: OnChain) -> EscrowTimes:
    """The escrow's times, by our own node."""
    return await own.contracts.escrow.times(await own.contracts.chain.head())


def look_every(period: int, *, least: float) -> float:
    """Seconds between two looks at what happens once in `period` seconds of the chain."""
    return max(least, min(LONGEST_LOOK, period / 2))


async def _outcome(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)


def _window(offer: Offer) -> timedelta:
    return timedelta(seconds=offer.expires_at - offer.available_from)
