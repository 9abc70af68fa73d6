"""What parties sign: the messages of a job (docs/protocol.md 2), frozen, strict and versioned.

A changed field is a new version. Losses, norms and distances are scaled integers (units beside the
field). Wallet-signed messages name an EIP-712 struct; `details` in it is the BLAKE3 digest of the
whole message, so that a wallet binds itself to every field while a contract reads only a few.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from annotated_types import Ge, Le, Len, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypeIs

from contracts.terms import typed_data
from contracts.terms.amounts import (
    UINT64_MAX,
    BaseUnitsField,
    EscrowAmountField,
    FlopsField,
    PriceField,
)
from contracts.terms.chunks import Chunking
from contracts.terms.digest import blob_digest, digest
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.ids import (
    MAX_CHUNKS,
    MAX_PEERS,
    MAX_STAGES,
    ZERO_DIGEST,
    AddressField,
    ChunkIndex,
    Digest,
    DigestField,
    JobId,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StageField,
    StepField,
)
from contracts.terms.items import MAX_ITEMS, ItemField, Ranges
from contracts.terms.moments import UnixSecondsField
from contracts.terms.typed_data import TypedStruct

Text = Annotated[str, Field(max_length=256)]
Count = Annotated[int, Ge(0), Le(2**53 - 1)]
Positive = Annotated[int, Ge(1), Le(2**53 - 1)]
Millionths = Annotated[int, Ge(0), Le(2**53 - 1)]  # 1e-6
Signed64 = Annotated[int, Ge(-(2**62)), Le(2**62)]

LOSS_SCALE = 10**6  # a loss of 1 nat per token is 1_000_000
NORM_SCALE = 10**9  # a gradient norm of 1 is 1_000_000_000
NORM_SQUARED_SCALE = 10**12
DISTANCE_SCALE = 10**9
MILLION = 10**6
MAX_CHAT_ROWS = 2**14
"""Of a step, whose targets everybody counts who reads the history, at some 30 to 80 us each."""
MAX_PUBLICATIONS = 32
"""Of a job's weights before its end: each takes room at the market, and lines of its members."""


_DERIVED = ("cached_details", "chunking")
"""Cached values, which a changed copy does not take along."""


class Record(BaseModel):
    """A part of a message: frozen, strict, without unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        ser_json_bytes="hex",
        val_json_bytes="hex",
    )

    def value(self) -> dict[str, Any]:
        """Plain values for `encoding.encode`."""
        return self.model_dump(mode="python")

    def encoded(self) -> bytes:
        """Canonical bytes."""
        return encode(self.value())

    @classmethod
    def from_value(cls, value: object) -> Self:
        """The record that `value` (decoded msgpack) spells.

        Raises:
            Malformed: a field is missing, unknown, out of bounds or of another type.
        """
        try:
            return cls.model_validate(_tuples(value))
        except ValidationError as error:
            raise Malformed(f"{cls.__name__}: {_first(error)}") from error


class BlobRecord(Record):
    """A record that nobody signs; it is named by the digest of its canonical bytes."""

    kind: str
    max_bytes: ClassVar[int]

    def digest(self) -> Digest:
        """Its name: the digest of its blob."""
        return blob_digest(self.encoded())

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """The record that `data` spells.

        Raises:
            TooLarge: more than `max_bytes`.
            UnknownVersion: another kind or version.
            Malformed: anything else that does not fit, another spelling of the same value included.
        """
        value, wanted = decode(data, max_bytes=cls.max_bytes), cls.model_fields["kind"].default
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            raise Malformed(f"no {wanted}: its kind is missing")
        if kind != wanted:
            raise UnknownVersion(f"unknown kind {kind!r:.80}", kind=kind)
        record = cls.from_value(value)
        if record.encoded() != data:
            raise Malformed(f"{kind}: not in canonical form")
        return record


class Message(Record):
    """A fact that one party states, with its kind and version."""

    kind: str
    typed: ClassVar[TypedStruct | None] = None
    named_by: ClassVar[tuple[str, ...] | None] = None
    """Fields of its `stated_name`; None: nothing says that it is the only one."""

    def details(self) -> Digest:
        """BLAKE3 of the canonical bytes in the context of the kind."""
        return self.cached_details

    @cached_property
    def cached_details(self) -> Digest:
        """`details`, computed once: a message never changes, and is named often."""
        return digest(self.kind, self.encoded())

    def stated_name(self) -> tuple[object, ...] | None:
        """Name under which its signer may state one value only (docs/protocol.md 1), or None."""
        if self.named_by is None:
            return None
        return (self.kind, *(getattr(self, each) for each in self.named_by))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy, which has another digest."""
        copied = super().model_copy(update=update, deep=deep)
        for name in _DERIVED:
            copied.__dict__.pop(name, None)
        return copied

    def digest(self) -> Digest:
        """The message's name: BLAKE3, or the EIP-712 struct hash where a wallet signs."""
        return self.details()


class WalletMessage(Message):
    """A message that a contract may have to check: named by its EIP-712 struct hash."""

    typed: ClassVar[TypedStruct]

    def typed_values(self) -> tuple[object, ...]:
        """Values of the EIP-712 struct: its fields are fields of the message, or its `details`."""
        names = self.typed.attributes
        return tuple(self.details() if each == "details" else getattr(self, each) for each in names)

    def digest(self) -> Digest:
        """EIP-712 struct hash, without domain."""
        return self.typed.hash(self.typed_values())


CodecName = Literal["none", "float16", "bfloat16", "blockwise8"]
GradientCodecName = Literal["none", "float16", "bfloat16"]
SeededCodecName = Literal["seeded8", "seeded4"]
ShardCodecName = Literal[GradientCodecName, SeededCodecName]

DTypeName = Literal["float32", "float16", "bfloat16", "uint8", "int64"]


def is_seeded(codec: ShardCodecName) -> TypeIs[SeededCodecName]:
    """Whether a codec rounds by a seed; then shards and their means travel in two forms."""
    return codec in ("seeded8", "seeded4")


def mean_codec_of(codec: ShardCodecName) -> GradientCodecName:
    """Codec of the mean of shards under `codec`.

    A mean in few bits would be rounded a second time as coarsely as its shards.
    """
    return "bfloat16" if is_seeded(codec) else codec


LayerNumbers = Annotated[tuple[Annotated[int, Ge(0), Lt(1024)], ...], Len(0, 1024)]
LinearName = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class AdapterSpec(Record):
    """What is trained beside weights that never change: y = W x + (alpha / rank) B A x.

    Of each target, in every layer. Source: Hu et al. 2021, LoRA (arXiv 2106.09685).
    """

    rank: Annotated[int, Ge(1), Le(1024)]
    alpha: Annotated[int, Ge(1), Le(2**20)]
    targets: Annotated[tuple[LinearName, ...], Len(1, len(get_args(LinearName)))]

    @model_validator(mode="after")
    def _is_sorted(self) -> Self:
        if list(self.targets) != sorted(set(self.targets)):
            raise ValueError("targets ascend, and each is named once")
        return self


class ModelSpec(Record):
    """A decoder of the Llama kind; all that its initial weights and its arithmetic depend on."""

    vocab_size: Annotated[int, Ge(2), Le(2**20)]
    width: Annotated[int, Ge(1), Le(2**17)]
    num_layers: Annotated[int, Ge(1), Le(1024)]
    num_heads: Annotated[int, Ge(1), Le(1024)]
    num_kv_heads: Annotated[int, Ge(1), Le(1024)]
    ffn_width: Annotated[int, Ge(1), Le(2**19)]
    sequence_length: Annotated[int, Ge(2), Le(2**20)]
    rope_theta: Annotated[int, Ge(1), Le(2**40)]
    norm_epsilon: Annotated[int, Ge(1), Le(10**9)]  # 1e-12
    tied_head: bool
    head_dim: Annotated[int, Ge(0), Le(1024)]  # of a head; 0: width / num_heads
    qkv_bias: bool
    qk_norm: bool  # of each head's query and key
    rope_factor: Annotated[int, Ge(MILLION), Le(MILLION**2)]  # 1e-6; 1: positions as they are
    rope_low_factor: Annotated[int, Ge(1), Le(MILLION**2)]  # 1e-6
    rope_high_factor: Annotated[int, Ge(1), Le(MILLION**2)]  # 1e-6
    rope_context: Annotated[int, Ge(1), Le(2**20)]  # tokens; of the model before it was scaled
    window: Annotated[int, Ge(0), Le(2**20)]  # tokens that a token sees, itself one; 0: all before
    full_layers: LayerNumbers  # that see all in spite of a window
    unrotated_layers: LayerNumbers  # without positions
    init_seed: Count
    weights: DigestField  # blob that training starts from (safetensors); zero: from the seed
    adapter: AdapterSpec | None  # what is trained beside `weights`; none: the weights themselves

    @model_validator(mode="after")
    def _has_a_base(self) -> Self:
        if self.adapter is not None and self.weights == ZERO_DIGEST:
            raise ValueError("an adapter needs weights to start from")
        return self

    @property
    def trains_one_matrix(self) -> bool:
        """Whether embedding and head are one matrix, and it is trained."""
        return self.tied_head and self.adapter is None


class OptimizerSpec(Record):
    """Element-wise AdamW with decoupled weight decay, clipped by the sealed global norm."""

    learning_rate: Positive  # 1e-9, the peak
    beta1: Millionths
    beta2: Millionths
    epsilon: Positive  # 1e-15
    weight_decay: Millionths
    clip_norm: Millionths  # 0: no clipping
    warmup_steps: Count
    schedule: Literal["constant", "cosine", "linear", "wsd"]
    final_rate: Millionths  # part of the peak that the schedule ends at
    decay_ratio: Millionths  # part of all steps in which `wsd` decays


class DataSpec(Record):
    """Which rows are trained on, and which of their tokens the loss counts: its targets."""

    manifest: DigestField
    seed: Count
    tokenizer: DigestField  # blob, a `tokenizers` file; zero: one token a byte
    objective: Literal["pretrain", "sft"] = "pretrain"  # sft: the assistant's turns in chats
    targets: DigestField = ZERO_DIGEST  # blob: how many each row has (sft); zero: every token

    @model_validator(mode="after")
    def _names_its_targets(self) -> Self:
        if (self.objective == "sft") != (self.targets != ZERO_DIGEST):
            raise ValueError("data.targets comes with the objective `sft`, no other")
        return self


NUMBERS_OF_STEP = 10
"""Of each inner step in a leaf: loss, norm and eight projections of the gradient."""


Exchanged = Literal["gradient", "difference"]
"""What peers send each other parameter by parameter: of a step, or of a round of local steps."""


class LocalSpec(Record):
    """Rounds of whole replicas that take many steps each and exchange differences of weights.

    A unit is `inner_steps` steps of the job's optimizer on equally many of its rows each; a peer
    does at most `segments` units in a round.
    """

    inner_steps: Annotated[int, Ge(1), Le(1024)]
    segments: Annotated[int, Ge(1), Le(1024)]
    rewarm_steps: Annotated[int, Ge(1), Le(10_000)]  # in which the rate rises in each round
    outer_rate: Positive  # 1e-6
    outer_momentum: Annotated[int, Ge(0), Lt(MILLION)]  # 1e-6
    round_time: Positive  # ms in which units are begun
    quorum: Annotated[int, Ge(1), Le(MAX_PEERS)]  # owners whose claims make an update, at least
    moments: Literal["restart", "mean"] = "restart"
    """At the start of a round: zero, or the mean of the replicas' at the end of the one before."""
    overlap: bool = False
    """Whether a peer works for the next round while this one is exchanged."""

    @property
    def num_vectors(self) -> int:
        """That a replica exchanges: the difference of its weights, and both moments if any."""
        return 3 if self.moments == "mean" else 1


class StopEarlySpec(Record):
    """Losses on validation rows that end a job before its last step (`governance.stopping`)."""

    patience: Annotated[int, Ge(1), Le(10_000)]  # losses in a row that are no better
    min_delta: Count  # by which a better one is lower, 1e-6 nats per token


class BatchSpec(Record):
    """How a job is cut: steps, units of a step, rows of a unit; stages and peers of a stage.

    Stage s holds the decoder layers from `layer_ends[s - 1]` (0 for the first) to `layer_ends[s]`;
    the first also the embedding, the last also the head. `spares` peers more are leased where they
    can be had, and join the stage that needs them most.
    """

    steps: Annotated[int, Ge(1), Le(10_000_000)]
    units_per_step: Annotated[int, Ge(1), Le(MAX_ITEMS)]
    rows_per_unit: Annotated[int, Ge(1), Le(65_536)]
    stages: Annotated[int, Ge(1), Le(MAX_STAGES)]
    layer_ends: Annotated[tuple[Annotated[int, Ge(1), Le(1024)], ...], Len(1, MAX_STAGES)]
    peers_per_stage: Annotated[int, Ge(1), Le(MAX_PEERS)]
    spares: Annotated[int, Ge(0), Le(MAX_PEERS)]
    chunks: Annotated[int, Ge(1), Le(MAX_CHUNKS)]
    checkpoint_every: Positive  # steps
    validate_every: Positive  # steps
    publish_every: Count  # steps between publications of the weights; 0: at the job's end alone
    local: LocalSpec | None  # of the strategy `local`
    stop_early: StopEarlySpec | None

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        if len(self.layer_ends) != self.stages:
            raise ValueError(f"layer_ends has {len(self.layer_ends)} ends, stages is {self.stages}")
        if self.local and (self.stages > 1 or self.rows_per_unit % self.local.inner_steps):
            raise ValueError("local: one stage, and units of equally many rows a step")
        if self.local and self.local.quorum > self.peers_per_stage + self.spares:
            raise ValueError("local.quorum is above the number of peers, spares included")
        if self.publish_every % self.checkpoint_every:
            raise ValueError("publish_every is no multiple of checkpoint_every")
        if self.num_publications > MAX_PUBLICATIONS:
            raise ValueError(
                f"publish_every: weights would be published {self.num_publications} times before "
                f"the end, at most {MAX_PUBLICATIONS} are: publish less often"
            )
        return self

    @property
    def num_publications(self) -> int:
        """How often the weights are published before the job's end, at most."""
        return (self.steps - 1) // self.publish_every if self.publish_every else 0

    def publishes(self, step: int) -> bool:
        """Whether the weights after `step` are published while the job goes on."""
        every = self.publish_every
        return every > 0 and 0 < step < self.steps and step % every == 0

    @property
    def trains_replicas(self) -> bool:
        """Whether each peer has the whole model and units of its own."""
        return self.local is not None

    @property
    def exchanged(self) -> Exchanged:
        """What peers average."""
        return "difference" if self.local else "gradient"

    @property
    def round_time(self) -> int | None:
        """Milliseconds in which units are begun, if it is said."""
        return self.local.round_time if self.local else None

    @property
    def norms_grow(self) -> bool:
        """Whether what a peer exchanges is longer the more samples it has worked on."""
        return self.local is not None

    @property
    def merges_late(self) -> bool:
        """Whether a claim that is delivered too late is merged in the round after its own."""
        return self.local is not None

    @property
    def works_ahead(self) -> bool:
        """Whether items of a claim may be computed on the weights before the newest update."""
        return self.local is not None and self.local.overlap

    @property
    def num_vectors(self) -> int:
        """That a peer exchanges; see `LocalSpec.num_vectors`."""
        return self.local.num_vectors if self.local else 1

    def vector_of(self, bucket: ChunkIndex) -> int:
        """Of which vector: 0 of what is applied, 1 of first moments, 2 of roots of second ones."""
        return bucket // self.chunks if self.num_vectors > 1 else 0

    @property
    def rows_at_once(self) -> int:
        """Rows of one forward pass."""
        return self.rows_per_unit // (self.local.inner_steps if self.local else 1)

    @property
    def numbers_of_leaf(self) -> int:
        """Of a unit in its last stage: its loss, then what is told of each inner step."""
        return 1 + NUMBERS_OF_STEP * (self.local.inner_steps if self.local else 0)

    @property
    def optimizer_steps(self) -> int:
        """Steps of the optimizer in the whole job, which its schedule spans."""
        return self.steps * (self.local.inner_steps * self.local.segments if self.local else 1)


def class_name(device_class: str) -> str:
    """The calibration table's name of the device class in an offer: without torch's build label."""
    return device_class.partition("+")[0]


class AuditSpec(Record):
    """How work is checked (docs/protocol.md 4 to 7). Rates are parts of 1e6."""

    floor: Annotated[int, Ge(1), Le(MILLION)]  # q of a claim of work, at least
    sums: Annotated[int, Ge(0), Le(MILLION)]  # q of a bucket
    repeats: Annotated[int, Ge(0), Le(MILLION)]  # r: of the reports, by outside auditors
    margin: Annotated[int, Ge(MILLION), Le(10 * MILLION)]  # m: above break-even
    detection: Annotated[int, Ge(1), Le(MILLION)]  # of a falsified claim by one replay
    deadline: Annotated[int, Ge(1), Le(10_000)]  # D: steps in which a drawn auditor reports
    thresholds: DigestField  # of the calibration table that verdicts follow from
    price: PriceField  # of an outside auditor's work; inside it is that of the lease
    budget: BaseUnitsField  # for audits, part of the job's budget
    device_class: Text  # of all who work and audit, as the table names it; empty: any of the table

    def admits(self, device_class: str) -> bool:
        """Whether who offers a device of this class may work in the job, and audit."""
        return self.device_class in ("", class_name(device_class))


class RulesSpec(Record):
    """The job's protocol numbers (docs/protocol.md 7), within governance bounds."""

    audit: AuditSpec | None  # None: nobody checks anything
    boundary_codec: CodecName  # of activations and their gradients between stages
    gradient_codec: ShardCodecName  # of shards inside a stage
    vesting_window: Annotated[int, Ge(0), Le(10_000)]  # W, steps
    commit_timeout: Positive  # ms from the end of work to the last claim in time
    exchange_timeout: Positive  # ms from there to the last part and bucket in time
    redo_after: Positive  # ms that a lost peer's work of a step waits for it, if others can do it
    lease_grace: Positive  # ms that a lost peer keeps its place

    @property
    def mean_codec(self) -> GradientCodecName:
        """Of buckets."""
        return mean_codec_of(self.gradient_codec)

    @property
    def part_codecs(self) -> tuple[ShardCodecName, GradientCodecName]:
        """Of shards, and of buckets."""
        return self.gradient_codec, self.mean_codec


class JobTerms(WalletMessage):
    """What the header and the spec of a job both say.

    The coordinator may commit `burst` at once and `rate` more an hour: what a lying one costs. All
    headers that a poster signed can be opened until `open_by`.
    """

    typed: ClassVar[TypedStruct] = typed_data.JOB_HEADER

    poster: AddressField
    coordinator: AddressField
    budget: EscrowAmountField
    burst: EscrowAmountField
    rate: Annotated[EscrowAmountField, Ge(1)]
    open_by: UnixSecondsField
    salt: Count  # makes equal orders different jobs

    def job(self) -> JobId:
        """The job's id: the struct hash of its header."""
        return JobId(self.digest())


class JobHeader(JobTerms):
    """The poster opens a job: the struct hash is the job's id, `spec_hash` signs the JobSpec."""

    kind: Literal["job_header.v1"] = "job_header.v1"

    spec_hash: DigestField


class JobSpec(JobTerms):
    """The poster orders work: model, data, budget, and the numbers that decide its checking.

    Signed as a `JobHeader`, whose `specHash` is `details`; so the contract knows the job by it.
    """

    kind: Literal["job_spec.v10"] = "job_spec.v10"

    name: Text
    deadline: UnixSecondsField  # no step with work begins after it
    price_ceiling: PriceField
    min_stake: EscrowAmountField  # that an account bonds to work in it
    confirmations: Annotated[int, Ge(1), Le(1000)]
    """Blocks, its own included, before a bond or a limit counts."""
    memory_bytes: Positive  # that a peer of the largest stage needs
    item_flops: Annotated[tuple[FlopsField, ...], Len(1, MAX_STAGES)]  # per stage, of one unit
    strategy: Literal["every_step", "local"]
    model: ModelSpec
    optimizer: OptimizerSpec
    data: DataSpec
    batch: BatchSpec
    rules: RulesSpec

    @model_validator(mode="after")
    def _fits_messages(self) -> Self:
        if self.chunking.num_all > MAX_CHUNKS:
            raise ValueError(f"at most {MAX_CHUNKS} chunks, those of all stages together")
        is_local = self.strategy == "local"
        if is_local != (self.batch.local is not None):
            raise ValueError("batch.local comes with the strategy `local`, no other")
        if not is_local and is_seeded(self.rules.gradient_codec):
            raise ValueError("gradient_codec: seeded codes are of the strategy `local`")
        if is_local and self.data.objective == "sft":
            raise ValueError("data.objective: sft is trained by the strategy `every_step` alone")
        rows = self.batch.units_per_step * self.batch.rows_per_unit
        if self.data.objective == "sft" and rows > MAX_CHAT_ROWS:
            raise ValueError(f"data.objective: a step of sft has at most {MAX_CHAT_ROWS} rows")
        if is_local and self.rules.audit is not None and not self.rules.audit.device_class:
            raise ValueError("audit.device_class: replays of `local` are compared within one class")
        beta1, beta2 = self.optimizer.beta1, self.optimizer.beta2
        has_bounds = self.optimizer.clip_norm > 0 and beta1**2 < MILLION * beta2
        if self.batch.num_vectors > 1 and not has_bounds:
            raise ValueError("local.moments: mean needs clip_norm, and beta1^2 below beta2")
        if self.batch.num_vectors > 1 and self.rules.gradient_codec == "float16":
            raise ValueError("local.moments: mean, where float16 makes small roots zero")
        if self.batch.num_vectors > 1 and self.batch.works_ahead:
            raise ValueError("local.overlap: who works ahead has no mean of moments to start from")
        return self

    @cached_property
    def chunking(self) -> Chunking:
        """Which chunks its gradients are summed in."""
        batch, is_tied = self.batch, self.model.trains_one_matrix
        return Chunking(batch.stages, batch.chunks, is_tied, batch.num_vectors)

    def most_squared(self, vector: int) -> int | None:
        """The largest squared norm that a vector of a claim may have, 1e-12; None: any.

        Moments are means of clipped gradients: twice as long is for what their codec rounds.
        """
        return 4 * self.optimizer.clip_norm**2 if vector else None

    @property
    def spec_hash(self) -> Digest:
        """See `JobHeader`."""
        return self.details()

    def header(self) -> JobHeader:
        """What the contract reads of it."""
        named = zip(self.typed.attributes, self.typed_values(), strict=True)
        return JobHeader.model_validate(dict(named))


class Offer(WalletMessage):
    """A provider offers one machine for one lease at a time."""

    kind: Literal["offer.v1"] = "offer.v1"
    typed: ClassVar[TypedStruct] = typed_data.OFFER

    account: AddressField
    session_key: SessionKeyField  # of the agent; signs heartbeats
    nonce: Count
    price: PriceField  # the ask
    device_class: Text
    memory_bytes: Positive
    flops_per_second: Positive
    bandwidth: Positive  # bytes per second
    available_from: UnixSecondsField
    expires_at: UnixSecondsField


class JobOpening(WalletMessage):
    """Message 0: the coordinator takes the job and names its keys."""

    kind: Literal["job_opening.v2"] = "job_opening.v2"
    typed: ClassVar[TypedStruct] = typed_data.JOB_OPENING
    named_by = ("job",)

    job: JobIdField
    job_spec: DigestField
    session_key: SessionKeyField
    anchorer: AddressField
    opening_block: Annotated[int, Ge(0), Le(UINT64_MAX)]
    outside_auditors: DigestField  # of their list; ZERO_DIGEST while checking is off


class LeaseAccept(WalletMessage):
    """Message 1: a provider binds an offer to a job, with the key of the peer that will work."""

    kind: Literal["lease_accept.v1"] = "lease_accept.v1"
    typed: ClassVar[TypedStruct] = typed_data.LEASE_ACCEPT
    named_by = ("job", "session_key")

    job: JobIdField
    account: AddressField
    session_key: SessionKeyField
    offer: DigestField
    price: PriceField
    stake: BaseUnitsField  # that the account bonds in the job; of all its leases there the largest
    device_class: Text


class StepBeacon(Message):
    """Beside message 5: the beacon by which a step is drawn, as soon as it counts.

    The coordinator says it, so that draws follow from the history alone; members compare it with
    the chain before they take the seal, and the offline audit compares it again.
    """

    kind: Literal["step_beacon.v1"] = "step_beacon.v1"
    named_by = ("job", "of")

    job: JobIdField
    step: StepField  # of the seal that holds this
    of: StepField  # that it draws
    batch: DigestField  # root of the first that holds its seal; zero: nobody shows what it holds
    block: Annotated[int, Ge(0), Le(UINT64_MAX)]
    beacon: DigestField  # hash of that block; zero: it came too late, everything is drawn


class Validation(Message):
    """Beside message 5, in a job with `stop_early`: the loss of a state on the validation rows."""

    kind: Literal["validation.v1"] = "validation.v1"
    named_by = ("job", "of")

    job: JobIdField
    step: StepField  # of the seal that holds this
    of: StepField  # of the update that made the state
    loss: Count  # 1e-6 nats per token


class Notice(Message):
    """Message 5: a numbered change of membership, with the digest of its evidence."""

    kind: Literal["notice.v1"] = "notice.v1"
    named_by = ("job", "number")

    job: JobIdField
    step: StepField
    number: Count
    what: Literal["join", "leave", "missed_report", "missing_data", "suspension"]
    peer: PeerIdField
    stage: StageField
    address: Text  # where it can be dialled; empty: through the coordinator
    evidence: DigestField  # the LeaseAccept of a join, a draw's subject, or zero


class Seal(WalletMessage):
    """Message 6: the receipt of the round, the order of pay, and what the chain anchors."""

    kind: Literal["seal.v3"] = "seal.v3"
    typed: ClassVar[TypedStruct] = typed_data.SEAL
    named_by = ("job", "step")

    job: JobIdField
    step: StepField
    previous: DigestField  # seal, or JobOpening for the first
    messages_root: DigestField
    gradient_norm: Annotated[int, Ge(0), Le(2**63 - 1)]  # 1e-9; 0 in a step without update
    pay_root: DigestField
    earned: BaseUnitsField  # sums of the leaves
    vested: BaseUnitsField
    next: ItemField  # above every item that a seal covers
    unsealed: Ranges  # items below `next` that none does
    updates: Count  # of the model so far
    last: bool


def _tuples(value: object) -> object:
    """Lists of decoded msgpack as tuples, which strict models want."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
