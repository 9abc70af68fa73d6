"""A market in a test: real use cases over storage, a chain in memory, and people who use it.

`World` holds the ports; `tick` does once what Celery beat does all the time. A job is trained by
`JobMaker`, so its messages are what coordinator and peers would say.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from contracts.keys.wallet import Session, Wallet
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.digest import blob_digest
from contracts.terms.escrow_messages import Bond, Close, Grant, Limit, Quit
from contracts.terms.history import encode_kept
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    Digest,
    JobId,
    SessionKey,
    StageIndex,
)
from contracts.terms.messages import DataSpec, JobSpec, LeaseAccept, Offer
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.api.app import make_app
from market.api.context import USUAL, Api
from market.bodies.base import Stored
from market.bodies.jobs import Permit
from market.bodies.offers import Heartbeat, LeaseView, RegisterAuditor
from market.bodies.signing import auditor_digest, auditor_subject, heartbeat_digest, hosting_digest
from market.bootstrap import Market
from market.domain.admission import needed_memory, signed_flops
from market.domain.limits import BlobBounds
from market.domain.sizes import job_cost
from market.service.accept_lease import accept_lease
from market.service.anchor_seals import anchor_seals
from market.service.auditors import accept_bond, fix_auditors, hear_auditor, register_auditor
from market.service.clear_jobs import clear_jobs
from market.service.convictions import BundleSays
from market.service.due import begin_due, note_done, start_due
from market.service.faucet import give_faucet
from market.service.fund_jobs import fund_jobs
from market.service.hear import hear_offer
from market.service.histories import Histories
from market.service.host_jobs import register_host
from market.service.orders import relay_orders, take_order
from market.service.pass_time import lapse_leases, pass_deadlines, release_silent
from market.service.ports import Chain, Order, R, UnitOfWork, Wakeup
from market.service.post_job import post_job
from market.service.post_offer import post_offer
from market.service.reconcile import reconcile
from market.service.rows import AuditBondRow, JobRow, LeaseRow, LimitRow, OrderRow
from market.service.slash import announce_slashes, burn_slashes
from market.service.store_blob import Uploads
from market.service.store_messages import store_messages
from market.service.sync_chain import sync_chain
from market.worker.tasks import MONEY
from tests.support.fakes.market_memory import (
    MemoryBlobs,
    MemoryBundles,
    MemoryLimiter,
    MemoryWakeup,
)
from tests.support.fakes.memory_chain import MemoryChain
from tests.support.history import (
    DOMAIN,
    START,
    JobMaker,
    Member,
    make_session,
    make_spec,
    make_wallet,
)
from training.config import train_config
from training.data.manifest import Manifest, index_of

SHARDS = (b"to train on " * 1000, b"to validate on " * 1000)
INDEXES = tuple(index_of(BytesIO(shard)) for shard in SHARDS)
MANIFEST = Manifest(train=(INDEXES[0].shard(),), validation=(INDEXES[1].shard(),)).encoded()
CORPUS = {blob_digest(data): data for data in (MANIFEST, *SHARDS, *(i.encoded() for i in INDEXES))}
ANCHORER = make_wallet("anchorer").account
SUBJECT = Digest(b"s" * 32)
STAKE = 10_000_000
SIGNED_SECONDS = 50
"""For which what people sign counts; the escrow of tests allows 60."""
PERMIT = Permit(deadline=UnixSeconds(4_000_000_000), signature=bytes(65))
CEILING = PricePerPflop(10**12)
DEVICE = "cpu/x86_64/AVX2/torch-2.13.0"
"""One that the shipped calibration table holds, so that checked jobs take it."""


def market_spec(**changed: Any) -> JobSpec:
    """A job that a market admits: one stage, one peer, 12 steps, W = 2."""
    changes: dict[str, Any] = {
        "peers_per_stage": 1,
        "price_ceiling": CEILING,
        "data": DataSpec(manifest=blob_digest(MANIFEST), seed=3, tokenizer=ZERO_DIGEST),
        "min_stake": BaseUnits(1_000_000),
        "open_by": UnixSeconds(START + SIGNED_SECONDS),
    }
    spec = make_spec(**(changes | changed))
    changes |= derived(spec)
    spec = make_spec(**(changes | changed))
    cost = job_cost(spec, spec.price_ceiling)
    audit = spec.rules.audit
    budget = BaseUnits(cost + (1000 if audit is None else audit.budget))
    changes |= {"budget": budget, "burst": budget, "rate": max(BaseUnits(1), budget)}
    return make_spec(**(changes | changed))


def derived(spec: JobSpec) -> dict[str, Any]:
    """What a spec has to say of its work and memory, which follow from its other numbers."""
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    flops, memory = signed_flops(spec, config), needed_memory(spec, config)
    return {"item_flops": flops, "memory_bytes": memory}


def sign_digest(session: Session, name: Digest) -> bytes:
    """A session key's signature over a digest."""
    return session.private_key.sign(name)


@dataclass
class World:
    """One market and its users."""

    new_work: Callable[[], UnitOfWork]
    new_reading: Callable[[], UnitOfWork]
    chain: MemoryChain = field(default_factory=lambda: MemoryChain(DOMAIN, ANCHORER, now=START))
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    offers: dict[str, Digest] = field(default_factory=dict)
    auditors: dict[str, Session] = field(default_factory=dict)
    wakeup: Wakeup = field(default_factory=MemoryWakeup)
    beats: int = 0
    domain: Domain = DOMAIN
    anchorer: Address = ANCHORER
    blob_bounds: BlobBounds = USUAL
    uploads: Uploads = field(default_factory=Uploads)

    def __post_init__(self) -> None:
        self.histories = Histories(self.domain)
        self.bundles = MemoryBundles(self.blobs)
        self.blobs.blobs.update(CORPUS)

    @property
    def ports(self) -> Chain:
        """The chain, as use cases see it."""
        return self.chain

    @property
    def now(self) -> UnixMillis:
        """The market's clock, which is the chain's."""
        return UnixMillis(self.chain.now * 1000 + self.beats)

    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self.chain.now += seconds

    def api(self) -> Api:
        """What the HTTP application holds."""
        market = Market(
            self.new_work,
            self.new_reading,
            self.ports,
            self.blobs,
            self.bundles,
            self.wakeup,
            self.histories,
            lambda: self.now,
            MemoryLimiter(),
        )
        return Api(
            market, "the host's token", "0", 10**18, 10**9, 3, 1, blob_bounds=self.blob_bounds
        )

    def show(self, text: bytes, job: JobId, subject: Digest = SUBJECT, **changed: Any) -> Digest:
        """A blob that is a bundle about `subject`; `changed` is what it says beside that."""
        name = blob_digest(text)
        values: dict[str, Any] = {
            "domain": self.domain, "job": job, "subject": subject,
            "auditor": make_session("auditor").peer, "report": ZERO_DIGEST,
        }  # fmt: skip
        self.blobs.blobs[name] = text
        self.bundles.says[name] = BundleSays(**(values | changed))
        return name

    # ------------------------------------------------------------------------------ what users do

    def sign_offer(self, name: str, price: int, **changed: Any) -> Signed[Offer]:
        """An offer of `name`."""
        values: dict[str, Any] = {
            "account": make_wallet(name).account,
            "session_key": make_session(f"agent {name}").key,
            "nonce": 1,
            "price": PricePerPflop(price),
            "device_class": DEVICE,
            "memory_bytes": 2**40,
            "flops_per_second": 10**10,
            "bandwidth": 10**8,
            "available_from": UnixSeconds(START - 1000),
            "expires_at": UnixSeconds(4_000_000_000),
        }
        return make_wallet(name).sign(Offer(**(values | changed)), self.domain)

    async def stake(self, name: str) -> None:
        """A provider puts tokens into the escrow, with its own gas."""
        account = make_wallet(name).account
        self.chain.give_tokens(account, STAKE)
        self.chain.deposit(account, STAKE)

    async def give_tokens(self, spec: JobSpec, permit_by: str) -> Permit:
        """The poster gets its budget; a permit for it (which a memory chain does not read)."""
        self.chain.give_tokens(spec.poster, spec.budget)
        return PERMIT

    async def offer(self, name: str, price: int, **changed: Any) -> Digest:
        """A provider with tokens in the escrow offers a machine and is heard."""
        if not (await self.ports.account(make_wallet(name).account)).free:
            await self.stake(name)
            await self.sync()
        signed = self.sign_offer(name, price, **changed)
        row = await post_offer(signed.encoded(), self.now, self.new_work(), self.ports)
        self.offers[name] = row.offer
        await self.beat(name)
        return row.offer

    async def audit(self, name: str, *, key: str = "") -> SessionKey:
        """An account with tokens in the escrow offers to audit from outside; its audit key."""
        self.beats += 1
        if not (await self.ports.account(make_wallet(name).account)).free:
            await self.stake(name)
            await self.sync()
        said = self.sign_auditor(name, make_session(f"audit {key or name}"))
        await register_auditor(said, self.now, self.new_work(), self.ports)
        self.auditors[name] = make_session(f"audit {key or name}")
        return said.session_key

    def sign_auditor(
        self, name: str, session: Session, *, by: str = "", at: UnixMillis | None = None
    ) -> RegisterAuditor:
        """An account says that it audits by a session key."""
        account, at = make_wallet(name).account, self.now if at is None else at
        named = auditor_digest(account, session.key, DEVICE, at)
        return RegisterAuditor(
            account=account,
            session_key=session.key,
            device_class=DEVICE,
            at=at,
            signature=make_wallet(by or name).sign_digest(named),
        )

    def sign_beat(self, session: Session, subject: Digest) -> Heartbeat:
        """A heartbeat, a moment later than what was said before."""
        self.beats += 1
        at = self.now
        return Heartbeat(at=at, signature=sign_digest(session, heartbeat_digest(subject, at)))

    def auditor_beat(self, name: str) -> Heartbeat:
        """A heartbeat of an auditor."""
        subject = auditor_subject(make_wallet(name).account)
        return self.sign_beat(make_session(f"audit {name}"), subject)

    def offer_beat(self, name: str) -> Heartbeat:
        """A heartbeat of an agent."""
        return self.sign_beat(make_session(f"agent {name}"), self.offers[name])

    async def bond(self, name: str) -> tuple[AuditBondRow, ...]:
        """An auditor's heartbeat; it bonds in every job that asks for it."""
        wallet = make_wallet(name)
        beat = self.sign_beat(self.auditors[name], auditor_subject(wallet.account))
        at, signature = beat.at, beat.signature
        heard = await hear_auditor(wallet.account, at, signature, at, self.new_work())
        jobs = tuple(each.job for each in heard.asked)
        asked = await self.rows(AuditBondRow, account=wallet.account, job=jobs)
        for each in asked:
            signed = self.sign_bond(name, each)
            await accept_bond(
                wallet.account, signed.encoded(), self.now, self.new_work(), self.ports
            )
        return tuple(asked)

    async def beat(self, name: str) -> tuple[LeaseView, ...]:
        """An agent's heartbeat."""
        beat, offer = self.offer_beat(name), self.offers[name]
        return (await hear_offer(offer, beat.at, beat.signature, beat.at, self.new_work())).leases

    async def register(self, host: str = "host", names: Sequence[str] = ("coordinator",)) -> None:
        """A host with the wallet of the test's coordinator."""
        wallets = [make_wallet(name) for name in names]
        claims = [
            (wallet.account, wallet.sign_digest(hosting_digest(host, wallet.account)))
            for wallet in wallets
        ]
        await register_host(host, claims, self.now, self.new_work())

    async def post(self, spec: JobSpec, *, permit_by: str = "poster") -> JobRow:
        """The poster orders work, with tokens for it."""
        permit = await self.give_tokens(spec, permit_by)
        signed = make_wallet("poster").sign(spec, self.domain)
        return await post_job(
            signed.encoded(),
            permit,
            now=self.now,
            work=self.new_work(),
            chain=self.ports,
            blobs=self.blobs,
        )

    def accept_of(
        self, lease: LeaseRow | LeaseView, wallet: Wallet, session: Session
    ) -> LeaseAccept:
        """The LeaseAccept that fits a lease."""
        return LeaseAccept(
            job=lease.job,
            account=wallet.account,
            session_key=session.key,
            offer=lease.offer,
            price=lease.price,
            stake=lease.stake,
            device_class=DEVICE,
        )

    @property
    def by(self) -> UnixSeconds:
        """Until when what is signed now counts."""
        return UnixSeconds(self.now // 1000 + SIGNED_SECONDS)

    def sign_bond(
        self, name: str, asked: LeaseRow | LeaseView | AuditBondRow, stake: int | None = None
    ) -> Signed[Bond]:
        """The Bond that fits what an account is asked for."""
        wallet, wanted = make_wallet(name), asked.stake if stake is None else BaseUnits(stake)
        bond = Bond(job=asked.job, account=wallet.account, stake=wanted, by=self.by)
        return wallet.sign(bond, self.domain)

    async def order(self, name: str, order: Order) -> OrderRow:
        """Somebody hands in what it signs for the escrow."""
        signed = make_wallet(name).sign(order, self.domain)
        return await take_order(order.job, signed.encoded(), self.now, self.new_work(), self.ports)

    async def grant(self, job: JobId, **limits: int) -> None:
        """The coordinator raises limits of accounts, and the chain knows it."""
        wanted = tuple(
            Limit(account=make_wallet(name).account, limit=BaseUnits(limit))
            for name, limit in limits.items()
        )
        await self.order("coordinator", Grant(job=job, limits=wanted, by=self.by))
        await self.do_money()
        await self.sync()

    async def quit(self, name: str, job: JobId, keep: int) -> None:
        """An account stops working for a job."""
        account = make_wallet(name).account
        await self.order(name, Quit(job=job, account=account, keep=BaseUnits(keep), by=self.by))

    async def close(self, job: JobId) -> None:
        """The poster ends everybody's work."""
        await self.order("poster", Close(job=job, by=self.by))

    async def accept(self, name: str, lease: LeaseRow | LeaseView) -> Member:
        """A provider accepts a lease, and bonds; the peer that will work."""
        wallet, session = make_wallet(name), make_session(f"peer {name} {lease.lease.hex()}")
        signed = wallet.sign(self.accept_of(lease, wallet, session), self.domain)
        await accept_lease(
            lease.lease,
            signed.encoded(),
            self.sign_bond(name, lease).encoded() if lease.stake else None,
            self.now,
            self.new_work(),
            self.ports,
        )
        return Member(wallet, session, lease.price, StageIndex(lease.stage))

    async def send(self, maker: JobMaker, start: int = 0) -> Stored:
        """The coordinator posts what it has kept, from item `start` on."""
        return await self.store(maker, [encode_kept(item) for item in maker.items[start:]])

    async def seal(self, maker: JobMaker, steps: int = 1, *, last: bool = False) -> None:
        """The coordinator seals more steps, and posts what the market does not know."""
        for step in range(steps):
            maker.seal_step(last=last and step == steps - 1)
        await self.send(maker)

    async def store(self, maker: JobMaker, items: Sequence[bytes]) -> Stored:
        """The coordinator posts these."""
        return await store_messages(
            maker.spec.job(),
            items,
            by=maker.spec.coordinator,
            now=self.now,
            work=self.new_work(),
            chain=self.ports,
            histories=self.histories,
        )

    # ------------------------------------------------------------------------ what the market does

    async def relay(self, job: JobId) -> None:
        """Send what was ordered of a job, as far as it can be sent."""
        await relay_orders(job, self.now, self.new_work(), self.ports)

    async def sync(self) -> None:
        """Read the chain."""
        await sync_chain(self.now, self.new_work(), self.ports, first_block=0)

    async def clear(self) -> list[LeaseRow]:
        """One clearing round."""
        return await clear_jobs(self.now, self.new_work())

    async def do_money(self) -> None:
        """Run the tasks of jobs that are due, one after the other."""
        due = list[tuple[Any, JobId]]()
        await start_due(self.now, self.new_work(), lambda task, job: due.append((task, job)))
        for task, job in due:
            begun = await begin_due(job, task, self.now, self.new_work())
            again_at = await MONEY[task](job, self.now, self.new_work(), self.ports)
            await note_done(begun, again_at, self.new_work())

    async def ticks(self, number: int, seconds: int = 4) -> None:
        """As often, with some time after each."""
        for _ in range(number):
            await self.tick()
            self.wait(seconds)

    async def tick(self) -> None:
        """Everything that beat drives, once."""
        now, work, chain = self.now, self.new_work, self.ports
        await give_faucet(work(), chain)
        await fund_jobs(now, work(), chain)
        await self.sync()
        await self.clear()
        await lapse_leases(now, work())
        await release_silent(now, work())
        await pass_deadlines(now, work())
        await self.do_money()
        await self.sync()
        await fix_auditors(now, work(), chain)
        await anchor_seals(now, work(), chain, patience_millis=0)
        await self.sync()
        await announce_slashes(now, work(), chain)
        await burn_slashes(now, work(), chain)
        await self.do_money()
        await self.sync()
        await reconcile(self.new_reading(), chain)

    async def start_job(self, name: str = "ann", **changed: Any) -> "LeasedMaker":
        """A job that is matched with one provider, and its coordinator's records.

        All who audit have bonded in it.
        """
        await self.register(names=("coordinator", "another coordinator"))
        await self.offer(name, 10**11)
        spec = market_spec(**({"open_by": self.by} | changed))
        await self.post(spec)
        await self.tick()
        (lease,) = await self.beat(name)
        member = await self.accept(name, lease)
        for auditor in self.auditors:
            await self.bond(auditor)
        await self.tick()
        return self.maker(spec, (member, lease))

    def maker(
        self, spec: JobSpec, *leased: tuple[Member, LeaseRow | LeaseView], **opened: Any
    ) -> "LeasedMaker":
        """What the coordinator of a matched job keeps; `opened`: of its opening, unless usual."""
        return LeasedMaker(
            name=spec.name,
            members=[member for member, _ in leased],
            spec_changes=spec_changes(spec),
            anchorer=self.anchorer,
            domain=self.domain,
            leases={
                member.session.key: self.accept_of(lease, member.wallet, member.session)
                for member, lease in leased
            },
            **opened,
        )

    async def rows(self, kind: type[R], **wanted: Any) -> list[R]:
        """Rows of a table, as `Rows.where` finds them."""
        async with self.new_work() as work:
            return await work[kind].where(**wanted)

    async def row(self, kind: type[R], *key: Any) -> R:
        """A row that is there."""
        async with self.new_work() as work:
            row = await work[kind].get(*key)
        assert row is not None
        return row

    async def limit(self, job: JobId, name: str = "ann") -> LimitRow:
        """What somebody may earn and has earned in a job."""
        return await self.row(LimitRow, job, make_wallet(name).account)

    @property
    def chain_events(self) -> list[str]:
        """Names of all events of the chain in memory."""
        return [event.event for block in self.chain.blocks for event in block.events]

    async def job(self, job: JobId) -> JobRow:
        """A job's row."""
        return await self.row(JobRow, job)


@dataclass
class LeasedMaker(JobMaker):
    """A `JobMaker` whose leases are those that a market made."""

    leases: dict[bytes, LeaseAccept] = field(default_factory=dict)

    def opened_anew(self, **changed: Any) -> "LeasedMaker":
        """The same job before its first step, opened otherwise."""
        return replace(self, **changed)

    def lease(self, member: Member) -> LeaseAccept:
        """The lease of `member`."""
        return self.leases[member.session.key]


def spec_changes(spec: JobSpec) -> dict[str, Any]:
    """What `JobMaker` needs to make this very spec."""
    changes = {name: getattr(spec, name) for name in JobSpec.model_fields}
    batch, rules = changes.pop("batch"), changes.pop("rules")
    for name in ("kind", "poster", "coordinator"):
        del changes[name]
    changes |= {name: getattr(batch, name) for name in type(batch).model_fields}
    return changes | {"vesting_window": rules.vesting_window, "audit": rules.audit}


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return make_app().openapi()


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    """A stream of one piece."""
    yield data
