"""A made-up job with real keys: what a coordinator and its peers would have said, step by step.

`JobMaker` opens a job, gives every member a lease and a stage, and seals steps; `items` is the
history as it is kept, `record` what it establishes. Equal arguments make equal bytes. Nothing is
computed: digests stand for tensors, so a history of three members takes milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, TypeAlias, TypeVar

from contracts.governance.checking import Begin, unread
from contracts.governance.claims import PayTree
from contracts.governance.gates import gate, peer_step
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.governance.rounds import claims_of
from contracts.governance.seals import Derived, UnderSeal, derive_seal
from contracts.keys.wallet import Session, Wallet
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.auditors import AuditorList, OutsideAuditor
from contracts.terms.chunks import Chunk
from contracts.terms.digest import digest, keccak
from contracts.terms.history import Kept, Leaves, claim_leaves_root
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    ChunkIndex,
    Digest,
    JobId,
    PeerId,
    StageIndex,
    StepNumber,
)
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.messages import (
    MILLION,
    BatchSpec,
    DataSpec,
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    ModelSpec,
    Notice,
    OptimizerSpec,
    RulesSpec,
    Seal,
)
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.targets import TargetCounts
from contracts.terms.typed_data import Domain
from contracts.terms.work import (
    Leaf,
    Output,
    RoundClosed,
    Verdict,
    WhatField,
    WorkClaim,
    findings_leaf,
    leaf_names,
)

M = TypeVar("M", bound=Message)
Report: TypeAlias = tuple[WorkClaim, Leaf]

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
    head_dim=0,
    qkv_bias=False,
    qk_norm=False,
    rope_factor=MILLION,
    rope_low_factor=MILLION,
    rope_high_factor=4 * MILLION,
    rope_context=8192,
    window=0,
    full_layers=(),
    unrotated_layers=(),
    init_seed=1,
    weights=ZERO_DIGEST,
    adapter=None,
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
    decay_ratio=200_000,
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
    batch: dict[str, Any] = {
        "steps": 12, "units_per_step": 6, "rows_per_unit": 4, "stages": 1, "peers_per_stage": 3,
        "spares": 0, "chunks": 2, "checkpoint_every": 5, "validate_every": 5, "local": None,
        "stop_early": None, "publish_every": 0,
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
    targets: TargetCounts | None = None
    """Of a job on chats, whose `spec_changes` name them."""

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
        if self.targets is not None:
            self.keep(self.targets)
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
        derived = derive_seal(self.record, self.under(items), last=last)
        self.keep(*items, self.coordinator.sign(derived.seal, self.domain))
        self.seals.append(derived)
        return derived

    def under(self, items: Iterable[Kept]) -> UnderSeal:
        """What the next seal takes: what is pending, and `items`."""
        added, history = under(items), self.history
        messages = (*history.pending.values(), *added.messages)
        return UnderSeal(messages, {**history.leaves, **added.leaves})

    def step_items(self, *, update: bool = True) -> list[Kept]:
        """What is said in the next step before its seal, in order."""
        items: list[Kept] = [self.session.sign(each) for each in self.notices()]
        claims = []
        for member in self.working():
            if numbers := self.items_of(member):
                claim, leaves = self.claim(member, numbers)
                claims.append(claim)
                items += [member.session.sign(claim), Leaves(claim.digest(), leaves)]
        if not update:
            return items
        closed = self.closed(claims)
        return [*items, self.session.sign(closed), *self.bucket_claims(closed, claims)]

    def working(self) -> Sequence[Member]:
        """Who does the next step."""
        return self.members

    def notices(self) -> list[Notice]:
        """Everybody joins in the first step."""
        if self.record.step:
            return []
        return [
            self.notice("join", member, number, self.lease(member).digest())
            for number, member in enumerate(self.members)
        ]

    def notice(
        self, what: Any, member: Member, place: int = 0, evidence: Digest = ZERO_DIGEST
    ) -> Notice:
        """A Notice about a member, the one after `place` others of the step."""
        return self.notice_of(what, member.session.peer, evidence, place, member.stage)

    def notice_of(
        self, what: Any, peer: PeerId, evidence: Digest, place: int = 0, stage: int = 0
    ) -> Notice:
        """The same about a peer that may be no member."""
        return Notice(
            job=self.spec.job(),
            step=self.next_step,
            number=self.record.next_notice + place,
            what=what,
            peer=peer,
            stage=StageIndex(stage),
            address="",
            evidence=evidence,
        )

    def items_of(self, member: Member) -> tuple[ItemNumber, ...]:
        """The items of the round that `member` does: all are dealt over its stage in turn."""
        peers = [each for each in self.working() if each.stage == member.stage]
        issued = self.record.cursor.issue(self.spec.batch.units_per_step)
        return issued[peers.index(member) :: len(peers)]

    def claim(
        self, member: Member, items: Sequence[ItemNumber] | None = None, **changed: Any
    ) -> tuple[WorkClaim, tuple[Leaf, ...]]:
        """What `member` claims to have done; by default all of its items."""
        numbers = self.items_of(member) if items is None else items
        leaves = changed.pop("leaf_list", None) or tuple(
            self.leaf(member.stage, item) for item in numbers
        )
        values: dict[str, Any] = {
            "job": self.spec.job(),
            "peer": member.session.peer,
            "previous": self.record.previous,
            "round": self.next_step,
            "group": member.stage,
            "base": self.base(member.stage),
            "items": ranges_of(numbers),
            "leaves": claim_leaves_root(leaves),
            "outputs": self.outputs(member, self.next_step),
        }
        return make_claim("work", **(values | changed)), leaves

    def base(self, stage: StageIndex) -> Digest:
        """Root of the state of a stage, which only an update changes."""
        return make_digest("state", int(stage), self.record.updates)

    def outputs(self, member: Member, step: StepNumber) -> tuple[Output, ...]:
        """Digests and norms of a gradient that does not exist."""
        return tuple(
            Output(
                bucket=chunk,
                digest=make_digest("part", member.session.peer, step, chunk),
                norm_squared=10**12 + 10**9 * step + 10**6 * chunk,
            )
            for _, chunk in self.spec.chunking.of_stage(member.stage)
        )

    def leaf(self, stage: StageIndex, item: ItemNumber) -> Leaf:
        """An item whose tensors have the same digests in the stages beside it."""
        batch, step = self.spec.batch, self.next_step
        loss = 3_000_000 - 1000 * step - item % batch.units_per_step
        return Leaf(
            item=item,
            base_round=step,
            given=False,
            tensors=tuple(
                (name, make_digest(name)) for name in leaf_names(stage, batch.stages, item).all
            ),
            numbers=(loss,) if stage == batch.stages - 1 else (),
        )

    def closed(self, claims: Sequence[WorkClaim], **changed: Any) -> RoundClosed:
        """RoundClosed over claims, weighted by their samples, as far as the norm gate lets them."""
        leases, spec, step = self.record.leases, self.spec, self.next_step
        steps = [
            peer_step(
                claim,
                leases[claim.peer].account,
                self.record.weights.of(claim.items),
                spec.batch.num_vectors,
            )
            for claim in claims
        ]
        gated = gate(self.record.gates, step, steps, norms_grow=spec.batch.norms_grow)
        closed_at = UnixMillis((START + 10 * step) * 1000)
        values: dict[str, Any] = {
            "job": spec.job(),
            "round": step,
            "bases": tuple(self.base(StageIndex(stage)) for stage in range(spec.batch.stages)),
            "claims": tuple(sorted(gated.weights.items())),
            "reducers": tuple(self.reducer(*chunk).session.peer for chunk in spec.chunking.all),
            "given": (),
            "opened_at": UnixMillis(closed_at - 8_000),
            "commit_ends": UnixMillis(closed_at + 2_000),
            "closed_at": closed_at,
        }
        return RoundClosed(**(values | changed))

    def reducer(self, stage: StageIndex, chunk: ChunkIndex) -> Member:
        """Who reduces a bucket: the members of its stage in turn."""
        members = [member for member in self.working() if member.stage == stage]
        return members[chunk % len(members)]

    def bucket_claims(
        self, closed: RoundClosed, claims: Sequence[WorkClaim]
    ) -> list[Signed[WorkClaim]]:
        """The claims of all buckets, each by its dealt reducer."""
        return [
            self.reducer(*chunk).session.sign(self.bucket_claim(closed, claims, chunk))
            for chunk in self.spec.chunking.all
        ]

    def bucket_claim(
        self, closed: RoundClosed, claims: Sequence[WorkClaim], chunk: Chunk, **changed: Any
    ) -> WorkClaim:
        """What the dealt reducer says of a bucket: no longer than the shortest of its parts."""
        stage, number = chunk
        givers = self.spec.chunking.stages_of(chunk)
        parts = [each.outputs[number] for each in claims if each.group in givers]
        output = Output(
            bucket=number,
            digest=make_digest("chunk", int(stage), closed.round, int(number)),
            norm_squared=isqrt(min(part.norm_squared for part in parts)) ** 2,
        )
        values: dict[str, Any] = {
            "job": closed.job,
            "peer": self.reducer(*chunk).session.peer,
            "previous": self.record.previous,
            "round": closed.round,
            "group": stage,
            "subject": closed.digest(),
            "outputs": (output,),
        }
        return make_claim("bucket", **(values | changed))

    @property
    def next_step(self) -> StepNumber:
        """The step that is worked on."""
        return StepNumber(self.record.step + 1)


def make_claim(what: WhatField, **said: Any) -> WorkClaim:
    """A claim in which what is not said is zero, or nothing."""
    nothing: dict[str, Any] = {
        "previous": ZERO_DIGEST, "group": StageIndex(0), "seq": 0, "attempt": 0,
        "base": ZERO_DIGEST, "items": (), "subject": ZERO_DIGEST, "leaves": ZERO_DIGEST,
        "outputs": (), "reports": (),
    }  # fmt: skip
    return WorkClaim(**(nothing | {"what": what} | said))


def report_claim(
    job: JobId,
    auditor: PeerId,
    verdict: Verdict,
    distances: Sequence[int] = (),
    projections: Sequence[int] = (),
    **changed: Any,
) -> Report:
    """What an auditor says, and the leaf with what it found; `changed` names subject and place."""
    leaf = findings_leaf(verdict, distances, projections)
    about = {"job": job, "peer": auditor, "leaves": claim_leaves_root([leaf])}
    return make_claim("report", **(about | changed)), leaf


def seal_over(job: JobId, step: int, tree: PayTree, *, last: bool = False) -> Seal:
    """A seal that pays by `tree`, of no work."""
    return Seal(
        job=job,
        step=StepNumber(step),
        previous=ZERO_DIGEST,
        messages_root=ZERO_DIGEST,
        gradient_norm=0,
        pay_root=tree.root,
        earned=BaseUnits(sum(leaf.earned for leaf in tree.leaves)),
        vested=BaseUnits(sum(leaf.vested for leaf in tree.leaves)),
        next=ItemNumber(0),
        unsealed=(),
        updates=0,
        last=last,
    )


def messages_of(items: Iterable[Kept], kind: type[M]) -> list[M]:
    """The messages of a kind."""
    messages = (item.message for item in items if isinstance(item, Signed))
    return [each for each in messages if isinstance(each, kind)]


def claims_in(items: Iterable[Kept], what: WhatField) -> list[WorkClaim]:
    """The claims of one kind of work."""
    return claims_of(messages_of(items, WorkClaim), what)


def under(items: Iterable[Kept]) -> UnderSeal:
    """Items that no seal covers yet, as the next one takes them."""
    messages = tuple(item for item in items if isinstance(item, Signed))
    leaves = {item.claim: item.leaves for item in items if isinstance(item, Leaves)}
    return UnderSeal(messages, leaves)
