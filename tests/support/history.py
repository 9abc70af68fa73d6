"""A made-up job with real keys: what a coordinator and its peers would have said, step by step.

`JobMaker` opens a job, gives every member a lease and a stage, and seals steps; `items` is the
history as it is kept, `record` what it establishes. Equal arguments make equal bytes. Nothing is
computed: digests stand for tensors, so a history of three members takes milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, TypeVar

from contracts.governance.checking import Begin, unread
from contracts.governance.gates import gate, peer_step
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.governance.seals import Derived, UnderSeal, derive_seal
from contracts.keys.wallet import Session, Wallet
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.auditors import AuditorList, OutsideAuditor
from contracts.terms.digest import digest, keccak
from contracts.terms.history import Kept, Leaves, unit_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, StageIndex, StepNumber, UnitId
from contracts.terms.messages import (
    Assignment,
    AveragedChunk,
    AverageMember,
    AverageSet,
    BatchSpec,
    DataSpec,
    GradCommit,
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    ModelSpec,
    Notice,
    OptimizerSpec,
    PartDigest,
    RulesSpec,
    StepClose,
    UnitLeaf,
)
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain

M = TypeVar("M", bound=Message)

ESCROW = Address(bytes.fromhex("5e" * 20))
DOMAIN = Domain(31337, ESCROW)
START = 1_750_000_000

MODEL = ModelSpec(
    vocab_size=256,
    width=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    ffn_width=128,
    sequence_length=32,
    rope_theta=10_000,
    norm_epsilon=10_000_000,
    tied_head=True,
    init_seed=1,
    weights=ZERO_DIGEST,
)
OPTIMIZER = OptimizerSpec(
    learning_rate=3_000_000,
    beta1=900_000,
    beta2=950_000,
    epsilon=10_000_000,
    weight_decay=100_000,
    clip_norm=1_000_000,
    warmup_steps=2,
    schedule="cosine",
    final_rate=100_000,
)


def make_digest(*names: object) -> Digest:
    """A digest that stands for the thing with these names."""
    return digest("made", repr(names).encode())


def make_wallet(name: str) -> Wallet:
    """The wallet of `name`; the same every time."""
    return Wallet(keccak(b"wallet " + name.encode()))


def make_session(name: str) -> Session:
    """The session key of `name`; the same every time."""
    return Session(keccak(b"session " + name.encode()))


def outside_auditors(
    names: Iterable[str],
    *,
    device_class: str = "cpu",
    stake: int = 10**9,
    classes: Mapping[str, str] | None = None,
    session_of: Callable[[str], Session] = make_session,
) -> AuditorList:
    """Accounts outside of a job with a key each; `classes`: of devices, where they differ."""
    entries = [
        OutsideAuditor(
            account=make_wallet(name).account,
            stake=BaseUnits(stake),
            session_key=session_of(name).key,
            device_class=(classes or {}).get(name, device_class),
        )
        for name in names
    ]
    return AuditorList(auditors=tuple(sorted(entries, key=lambda each: each.account)))


@dataclass(frozen=True)
class Member:
    """One peer: whose it is, with which key, at what price, in which stage."""

    wallet: Wallet
    session: Session
    price: PricePerPflop
    stage: StageIndex


def make_members(
    names: Iterable[str] = ("ann", "bob", "cem"), *, stages: int = 1, seed: str = ""
) -> list[Member]:
    """Members by name, prices 900,000 and up, dealt over `stages` in turn."""
    return [
        Member(
            make_wallet(name),
            make_session(f"{name} {seed}"),
            PricePerPflop(900_000 + 7 * number),
            StageIndex(number % stages),
        )
        for number, name in enumerate(names)
    ]


def make_spec(
    poster: Wallet | None = None, coordinator: Wallet | None = None, **changed: Any
) -> JobSpec:
    """A job of 3 units a step and 12 steps, W = 2, with enough budget for all of them.

    Its head is tied if it has one stage; with several, a `model` may say so.
    """
    batch = {
        "steps": 12, "units_per_step": 6, "rows_per_unit": 4, "stages": 1, "peers_per_stage": 3,
        "spares": 0, "chunks": 2, "checkpoint_every": 5, "validate_every": 5,
    }  # fmt: skip
    batch |= {key: changed.pop(key) for key in tuple(changed) if key in batch}
    model = MODEL if batch["stages"] == 1 else MODEL.model_copy(update={"tied_head": False})
    stages, layers = batch["stages"], changed.get("model", model).num_layers
    ends = tuple(max(stage, layers * stage // stages) for stage in range(1, stages + 1))
    layer_ends = changed.pop("layer_ends", ends)
    rules: dict[str, Any] = {
        "vesting_window": 2, "boundary_codec": "none", "gradient_codec": "none", "audit": None
    }  # fmt: skip
    rules |= {key: changed.pop(key) for key in tuple(changed) if key in rules}
    values: dict[str, Any] = {
        "poster": (poster or make_wallet("poster")).account,
        "coordinator": (coordinator or make_wallet("coordinator")).account,
        "salt": 1,
        "name": "made up",
        "budget": BaseUnits(100_000_000),
        "burst": BaseUnits(50_000_000),
        "rate": BaseUnits(50_000_000),
        "open_by": UnixSeconds(3_900_000_000),
        "price_ceiling": PricePerPflop(1_000_000),
        "deadline": UnixSeconds(4_000_000_000),
        "min_stake": BaseUnits(1_000_000),
        "confirmations": 1,
        "memory_bytes": 10**9,
        "item_flops": (Flops(123_456_789_012_345),) * batch["stages"],
        "strategy": "every_step",
        "model": model,
        "optimizer": OPTIMIZER,
        "data": DataSpec(manifest=make_digest("manifest"), seed=3, tokenizer=ZERO_DIGEST),
        "batch": BatchSpec(layer_ends=layer_ends, **batch),
        "rules": RulesSpec(
            commit_timeout=10_000,
            exchange_timeout=10_000,
            redo_after=60_000,
            lease_grace=60_000,
            **rules,
        ),
    }
    return JobSpec(**(values | changed))


@dataclass
class JobMaker:
    """A job that grows by `seal_step`. Keyword arguments of `make_spec` may be given as `spec`."""

    name: str = "job"
    domain: Domain = DOMAIN
    members: Sequence[Member] = field(default_factory=make_members)
    spec_changes: dict[str, Any] = field(default_factory=dict)
    anchorer: Address = field(default_factory=lambda: make_wallet("anchorer").account)
    opening_block: int = 1
    poster: Wallet = field(default_factory=lambda: make_wallet("poster"))
    coordinator: Wallet = field(default_factory=lambda: make_wallet("coordinator"))
    device_class: str = "cpu"
    outside: AuditorList | None = None
    """Who may audit a checked job; None where nobody checks."""
    begin: Begin = unread

    def __post_init__(self) -> None:
        stages = max((member.stage for member in self.members), default=0) + 1
        changes = {"stages": stages, "name": self.name} | self.spec_changes
        self.session = make_session(f"coordinator of {self.name}")
        self.spec = make_spec(self.poster, self.coordinator, **changes)
        self.opening = JobOpening(
            job=self.spec.job(),
            job_spec=self.spec.digest(),
            session_key=self.session.key,
            anchorer=self.anchorer,
            opening_block=self.opening_block,
            outside_auditors=ZERO_DIGEST if self.outside is None else self.outside.digest(),
        )
        self.items: list[Kept] = []
        self.seals: list[Derived] = []
        self.history = JobHistory(self.domain, self.begin)
        self.keep(self.poster.sign(self.spec, self.domain))
        self.keep(self.coordinator.sign(self.opening, self.domain))
        if self.outside is not None:
            self.keep(self.outside)
        for member in self.members:
            self.keep(member.wallet.sign(self.lease(member), self.domain))

    @property
    def record(self) -> JobRecord:
        """What is established so far."""
        assert self.history.record is not None
        return self.history.record

    def lease(self, member: Member) -> LeaseAccept:
        """The lease of `member`."""
        return LeaseAccept(
            job=self.spec.job(),
            account=member.wallet.account,
            session_key=member.session.key,
            offer=make_digest("offer", member.wallet.account),
            price=member.price,
            stake=BaseUnits(2_000_000),
            device_class=self.device_class,
        )

    def keep(self, *items: Kept) -> None:
        """Add items to the history, which checks them."""
        for item in items:
            self.history = follow(self.history, item)
            self.items.append(item)

    def seal_step(self, *, last: bool = False, update: bool = True) -> Derived:
        """One more step by all members, sealed; `update=False` ends it without an update."""
        return self.seal(self.step_items(update=update), last=last)

    def seal(self, items: Sequence[Kept], *, last: bool = False) -> Derived:
        """Keep `items` and the seal over them."""
        derived = derive_seal(self.record, under(items), last=last)
        self.keep(*items, self.coordinator.sign(derived.seal, self.domain))
        self.seals.append(derived)
        return derived

    def step_items(self, *, update: bool = True) -> list[Kept]:
        """What is said in the next step before its seal, in order."""
        items: list[Kept] = [self.session.sign(each) for each in self.notices()]
        close = self.close()
        items.append(self.session.sign(close))
        commits = []
        for member in self.working():
            commit, leaves = self.commit(member, close)
            commits.append(commit)
            items += [member.session.sign(commit), Leaves(commit.digest(), leaves)]
        average = self.average(close, commits if update else [])
        items.append(self.session.sign(average))
        return items + (list(self.chunks(average, commits)) if update else [])

    def working(self) -> Sequence[Member]:
        """Who does the next step."""
        return self.members

    def notices(self) -> list[Notice]:
        """Everybody joins in the first step."""
        if self.record.step:
            return []
        return [
            Notice(
                job=self.spec.job(),
                step=StepNumber(1),
                number=number,
                what="join",
                peer=member.session.peer,
                stage=member.stage,
                address="",
                evidence=self.lease(member).digest(),
            )
            for number, member in enumerate(self.members)
        ]

    def close(self, revision: int = 0) -> StepClose:
        """All units of the batch, dealt over the members of each stage in turn."""
        step = self.next_step
        num_units = self.spec.batch.units_per_step
        assignments = []
        for stage in range(self.spec.batch.stages):
            peers = [member for member in self.working() if member.stage == stage]
            for place, member in enumerate(peers):
                units = tuple(UnitId(unit) for unit in range(place, num_units, len(peers)))
                if units:
                    assignments.append(
                        Assignment(stage=StageIndex(stage), peer=member.session.peer, units=units)
                    )
        closed_at = UnixMillis((START + 10 * step) * 1000)
        return StepClose(
            job=self.spec.job(),
            step=step,
            revision=revision,
            assignments=tuple(assignments),
            closed_at=closed_at,
            commit_ends=UnixMillis(closed_at + 10_000),
            exchange_ends=UnixMillis(closed_at + 20_000),
        )

    def commit(
        self, member: Member, close: StepClose, **changed: Any
    ) -> tuple[GradCommit, tuple[UnitLeaf, ...]]:
        """What `member` commits to: the units that `close` gives it."""
        key = (member.stage, member.session.peer)
        given = [each for each in close.assignments if (each.stage, each.peer) == key]
        units = changed.pop("units", given[0].units if given else ())
        leaves = tuple(self.leaf(member.stage, unit) for unit in units)
        values: dict[str, Any] = {
            "job": close.job,
            "step": close.step,
            "round": 0,
            "stage": member.stage,
            "peer": member.session.peer,
            "step_close": close.digest(),
            "previous_seal": self.record.previous,
            "state_root": make_digest("state", member.stage, close.step),
            "units_root": unit_leaves_root(leaves),
            "num_units": len(units),
            "num_samples": len(units) * self.spec.batch.rows_per_unit,
            "parts": self.parts(member, close.step),
            "reports": (),
        }
        return GradCommit(**(values | changed)), leaves

    def parts(self, member: Member, step: StepNumber) -> tuple[PartDigest, ...]:
        """Digests and norms of a gradient that does not exist."""
        return tuple(
            PartDigest(
                chunk=chunk,
                digest=make_digest("part", member.session.peer, step, chunk),
                norm_squared=10**12 + 10**9 * step + 10**6 * chunk,
            )
            for _, chunk in self.spec.chunking.of_stage(member.stage)
        )

    def leaf(self, stage: StageIndex, unit: UnitId) -> UnitLeaf:
        """A unit whose tensors link with those of the stages beside it."""
        step, is_last = self.next_step, stage == self.spec.batch.stages - 1

        def boundary(tensor: str, after: int) -> Digest:
            return make_digest(tensor, step, unit, after)

        return UnitLeaf(
            unit=unit,
            x=boundary("y", stage) if stage else make_digest("rows", step, unit),
            y=ZERO_DIGEST if is_last else boundary("y", stage + 1),
            dy=ZERO_DIGEST if is_last else boundary("dx", stage + 1),
            dx=boundary("dx", stage) if stage else ZERO_DIGEST,
            loss=3_000_000 - 1000 * step - unit if is_last else None,
        )

    def average(self, close: StepClose, commits: Sequence[GradCommit]) -> AverageSet:
        """All commits, weighted by their samples, as far as the norm gate lets them."""
        leases = self.record.leases
        steps = [peer_step(commit, leases[commit.peer].account) for commit in commits]
        members = sorted(gate(self.record.gates, close.step, steps).weights.items())
        return AverageSet(
            job=close.job,
            step=close.step,
            step_close=close.digest(),
            members=tuple(AverageMember(grad_commit=name, weight=w) for name, w in members),
        )

    def chunks(
        self, average: AverageSet, commits: Sequence[GradCommit]
    ) -> Iterable[Signed[Message]]:
        """Every chunk of every stage, summed in turn by the members of the stage."""
        for stage, chunk in self.spec.chunking.all:
            summing = [member for member in self.working() if member.stage == stage]
            member = summing[chunk % len(summing)]
            givers = self.spec.chunking.stages_of((stage, chunk))
            parts = [each.parts[chunk] for each in commits if each.stage in givers]
            shortest = min(part.norm_squared for part in parts)
            message: Message = AveragedChunk(
                job=average.job,
                step=average.step,
                stage=stage,
                peer=member.session.peer,
                average_set=average.digest(),
                chunk=chunk,
                chunk_digest=make_digest("chunk", int(stage), average.step, int(chunk)),
                norm_squared=isqrt(shortest) ** 2,
            )
            yield member.session.sign(message)

    @property
    def next_step(self) -> StepNumber:
        """The step that is worked on."""
        return StepNumber(self.record.step + 1)


def messages_of(items: Iterable[Kept], kind: type[M]) -> list[M]:
    """The messages of a kind."""
    messages = (item.message for item in items if isinstance(item, Signed))
    return [each for each in messages if isinstance(each, kind)]


def under(items: Iterable[Kept]) -> UnderSeal:
    """Items of one step as a seal covers them."""
    messages = tuple(item for item in items if isinstance(item, Signed))
    leaves = {item.grad_commit: item.leaves for item in items if isinstance(item, Leaves)}
    return UnderSeal(messages, leaves)
