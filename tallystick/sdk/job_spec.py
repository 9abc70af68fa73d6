"""From a checked job file to what its poster signs and brings: the JobSpec, and the data it names.

Everything that peers need of the corpus, of a tokenizer and of a model to start from becomes a blob
named by its digest; the poster puts them into the market's store. Weights stay where they are until
they are sent, in parts that an index lists. Reading a folder of `transformers` or a tokenizer needs
the extra `models`.

Amounts in base units, spans in milliseconds, moments in Unix seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge
from contracts.terms.ids import MAX_CHUNKS, ZERO_DIGEST, Address, Digest
from contracts.terms.messages import (
    MILLION,
    AuditSpec,
    BatchSpec,
    DataSpec,
    JobSpec,
    LocalSpec,
    RulesSpec,
    StopEarlySpec,
    class_name,
)
from contracts.terms.moments import UnixSeconds
from contracts.terms.parts import MAX_PART_BYTES, MAX_WHOLE_BYTES, Parts
from market.bodies.base import MAX_BLOB_BYTES
from tallystick.sdk.funding import funding_of
from tallystick.sdk.job_file import USUAL_CLASS, JobFile
from training.config import (
    BYTE_VOCABULARY,
    ModelConfig,
    StageSlice,
    TrainConfig,
    model_spec,
    optimizer_spec,
    scaled,
    shares_embedding,
    slices_of,
)
from training.data.chat_template import read_template
from training.data.chats import ChatForm, chat_form
from training.data.corpus import need_enough_rows
from training.data.prepare import (
    TOKENIZER,
    PreparedData,
    Say,
    is_prepared,
    load_prepared,
    prepare_data,
    recipe_of,
)
from training.data.tokens import TokenFile, read_token_file
from training.flops import item_flops
from training.memory import EVERY_STEP, FP32, Footprint, num_parameters, peer_memory
from training.models.sources import Source, parts_of, read
from training.planner import plan_layers
from training.strategies.local.footprint import footprint
from verification.distances.thresholds import shipped_digest
from verification.draws.economics import least_budget, stakes_among_equals, terms_of

if TYPE_CHECKING:
    from training.models.folder import ModelFolder


# ------------------------------------------------------------------ stages, stakes, audits, chunks

USUAL_STAKE = BaseUnits(10 * 10**6)
"""What a provider holds where no market says more: the stake of `provider start`."""
OPEN_SECONDS = 3600
"""In which a signed job is opened at the latest, if the contract takes signatures for so long."""


def cut(job: JobFile, config: TrainConfig) -> tuple[int, ...]:
    """`layer_ends`: as the file says, else as planned.

    Raises:
        Refused: `layer_ends` that are not as many as `stages`, or a cut that cannot be.
    """
    if job.layer_ends is None:
        return plan_layers(
            config.model,
            job.stages,
            _rows_at_once(job, config),
            memory_bytes=job.peer_memory,
            audits=job.checking == "on",
            footprint=_footprint(job),
        )
    ends = tuple(job.layer_ends)
    if "stages" in job.model_fields_set and job.stages != len(ends):
        raise Refused(f"layer_ends has {len(ends)} ends, stages is {job.stages}: one end a stage")
    largest = _memory(job, config, slices_of(config.model, ends))
    if job.peer_memory is not None and largest > job.peer_memory:
        raise Refused(f"layer_ends: a peer needs {largest} bytes, peer_memory is {job.peer_memory}")
    return ends


def _memory(job: JobFile, config: TrainConfig, stages: Sequence[StageSlice]) -> int:
    """Bytes that a peer of the largest stage needs; with its audits, where there are any."""
    rows, audits, own = _rows_at_once(job, config), job.checking == "on", _footprint(job)
    return max(
        peer_memory(config.model, each, rows, audits=audits, footprint=own) for each in stages
    )


def _footprint(job: JobFile) -> Footprint:
    local = _local(job)
    return EVERY_STEP if local is None else footprint(local)


def _rows_at_once(job: JobFile, config: TrainConfig) -> int:
    return config.data.rows_per_unit // (job.local.inner_steps if job.is_local else 1)


@dataclass(frozen=True)
class DataNames:
    """Digests of what a job is given: zero for what it does without."""

    manifest: Digest  # of the corpus
    tokenizer: Digest = ZERO_DIGEST
    weights: Digest = ZERO_DIGEST  # of the model that it starts from
    targets: Digest = ZERO_DIGEST  # counts of the targets in rows of chats


def build_spec(
    job: JobFile,
    config: TrainConfig,
    *,
    poster: Address,
    coordinator: Address,
    salt: int,
    data: DataNames,
    now: UnixSeconds,
    confirmations: int = 1,
    reservable: BaseUnits = USUAL_STAKE,
) -> JobSpec:
    """What the poster signs.

    Where the file says no burst and no rate, they are the whole budget (see `with_funding`).

    Args:
        job: As its poster wrote it.
        config: What it trains.
        poster: Who pays.
        coordinator: Who will run it.
        salt: Makes equal orders different jobs.
        data: What the market is given.
        now: Deadline and last moment of the opening follow from it.
        confirmations: Of the chain, where the file says none.
        reservable: Bounds the stake that a checked job asks for if its file says none.

    Raises:
        Malformed: a value does not fit its message field.
        Refused: sizes that do not fit each other, a number finer than its message field, or a
            checked job of local steps without a device class.
    """
    ends = cut(job, config)
    stages = slices_of(config.model, ends)
    rows = config.data.rows_per_unit
    flops = tuple(item_flops(config.model, stage, rows) for stage in stages)
    try:
        audit = _audit(job, config, flops)
        return JobSpec(
            poster=poster,
            coordinator=coordinator,
            salt=salt,
            name=job.name,
            budget=BaseUnits(job.budget),
            burst=BaseUnits(job.budget if job.burst is None else job.burst),
            rate=BaseUnits(max(1, job.budget) if job.rate is None else job.rate),
            open_by=UnixSeconds(now + OPEN_SECONDS),
            price_ceiling=PricePerPflop(job.price_ceiling),
            deadline=UnixSeconds(now + int(job.deadline.total_seconds())),
            min_stake=_min_stake(job, config, flops, audit, reservable),
            confirmations=confirmations if job.confirmations is None else job.confirmations,
            memory_bytes=_memory(job, config, stages),
            item_flops=flops,
            strategy=job.strategy,
            model=model_spec(config.model, weights=data.weights),
            optimizer=optimizer_spec(config.optimizer),
            data=DataSpec(
                manifest=data.manifest,
                seed=config.data.seed,
                tokenizer=data.tokenizer,
                objective=job.objective,
                targets=data.targets,
            ),
            batch=BatchSpec(
                steps=config.num_steps,
                units_per_step=config.data.units_per_step,
                rows_per_unit=rows,
                stages=len(ends),
                layer_ends=ends,
                peers_per_stage=job.peers_per_stage,
                spares=job.spares,
                chunks=job.chunks
                or _chunks(config.model, stages, job.peers_per_stage, _footprint(job).exchanged),
                checkpoint_every=job.checkpoint_every,
                validate_every=job.validate_every or config.num_steps,
                publish_every=job.publish_every,
                local=_local(job),
                stop_early=_stop_early(job),
            ),
            rules=RulesSpec(
                audit=audit,
                boundary_codec=job.boundary_codec,
                gradient_codec=job.shard_codec,
                vesting_window=job.vesting_window,
                commit_timeout=_millis(job.commit_timeout),
                exchange_timeout=_millis(job.exchange_timeout),
                redo_after=_millis(job.redo_after),
                lease_grace=_millis(job.lease_grace),
            ),
        )
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(("job", *map(str, detail["loc"])))
        raise Malformed(f"{where}: {detail['msg'].removeprefix('Value error, ')}") from error


def _local(job: JobFile) -> LocalSpec | None:
    """Its rounds of local steps, if it has any."""
    if not job.is_local:
        return None
    local = job.local
    return LocalSpec(
        inner_steps=local.inner_steps,
        segments=local.segments,
        rewarm_steps=local.rewarm_steps,
        moments=local.moments,
        overlap=local.overlap,
        outer_rate=scaled("local.outer_rate", local.outer_rate, MILLION),
        outer_momentum=scaled("local.outer_momentum", local.outer_momentum, MILLION),
        round_time=_millis(local.round_time),
        quorum=local.quorum or job.peers_per_stage // 2 + 1,
    )


def _stop_early(job: JobFile) -> StopEarlySpec | None:
    said = job.stop_early
    if said is None:
        return None
    delta = scaled("stop_early.min_delta", said.min_delta, MILLION)
    return StopEarlySpec(patience=said.patience, min_delta=delta)


def with_funding(spec: JobSpec, job: JobFile, seconds: int) -> JobSpec:
    """The spec with the burst and the rate that its work needs, where the file says none.

    Args:
        spec: As `build_spec` made it.
        job: Its file.
        seconds: Of computing.
    """
    funding = funding_of(spec, seconds)
    return spec.model_copy(
        update={
            "burst": funding.burst if job.burst is None else spec.burst,
            "rate": funding.rate if job.rate is None else spec.rate,
        }
    )


AUDIT_MARGIN = Fraction(5, 4)  # m of docs/protocol.md 7
AUDIT_DETECTION = Fraction(99, 100)  # of a falsified peer-step by one replay, at the least
AUDIT_DEADLINE = 4  # D, steps
AUDIT_BUDGET = Fraction(1, 4)  # of the job's budget, unless its file or `least_budget` says more


def _audit(job: JobFile, config: TrainConfig, flops: Sequence[Flops]) -> AuditSpec | None:
    """How the job is checked; None if it is not."""
    if job.checking == "off":
        return None
    if job.is_local and not job.device_class:
        raise Refused(
            "device_class: a checked job of the strategy local needs one, as only replays of one "
            f"class follow many steps, for example `device_class: {USUAL_CLASS}`; "
            "`tallystick market show` lists the classes on offer"
        )
    price, said = PricePerPflop(job.price_ceiling), job.audit_budget
    audit = AuditSpec(
        floor=scaled("audit_rate", job.audit_rate, MILLION),
        sums=scaled("sum_audit_rate", job.sum_audit_rate, MILLION),
        repeats=scaled("repeat_rate", job.repeat_rate, MILLION),
        margin=int(AUDIT_MARGIN * MILLION),
        detection=int(AUDIT_DETECTION * MILLION),
        deadline=AUDIT_DEADLINE,
        thresholds=shipped_digest(),
        price=price,
        budget=BaseUnits(int(job.budget * AUDIT_BUDGET) if said is None else said),
        device_class=class_name(job.device_class or ""),  # offers say it with torch's build label
    )
    if said is not None:
        return audit
    least = least_budget(
        terms_of(audit, job.vesting_window),
        step_flops=sum(flops) * config.data.units_per_step,
        steps=config.num_steps,
        dearest=price,
    )
    return audit.model_copy(update={"budget": max(audit.budget, least)})


def _min_stake(
    job: JobFile,
    config: TrainConfig,
    flops: Sequence[Flops],
    audit: AuditSpec | None,
    reservable: BaseUnits,
) -> BaseUnits:
    """As the file says, else what brings the draws to their floor, as far as it can be put up."""
    if job.min_stake is not None:
        return BaseUnits(job.min_stake)
    if audit is None:
        return BaseUnits(0)
    stakes = stakes_among_equals(
        terms_of(audit, job.vesting_window),
        item_flops=flops,
        units=-(-config.data.units_per_step // job.peers_per_stage),
        price=PricePerPflop(job.price_ceiling),
        owners=job.peers_per_stage,
    )
    return stakes.within(reservable)  # 0 if no stake would do: the market says why


def _chunks(
    model: ModelConfig, stages: tuple[StageSlice, ...], peers_per_stage: int, num_vectors: int
) -> int:
    """Two for each peer, so that a fast one sums more of them; none beyond what a call carries."""
    shared = model.vocab_size * model.width if model.tied_head and len(stages) > 1 else 0
    own = [
        num_parameters(model, stage) - (shared if shares_embedding(model, stage) else 0)
        for stage in stages
    ]
    sizes = [*own, shared] if shared else own
    needed = -(-FP32 * max(sizes) // MAX_CHUNK_BYTES)
    most = MAX_CHUNKS // (len(stages) * num_vectors + bool(shared))  # of all stages together
    return min(max(2 * peers_per_stage, needed), most, min(sizes))


def _millis(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)


# -------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Start:
    """The weights that a job starts from: where they are, and in which parts they travel.

    Satisfies `training.data.loading.BlobSource`.
    """

    file: Source
    index: Parts
    beside: tuple[str, ...]  # names of the files that travel with them

    def fetch(self, digest: Digest) -> bytes:
        """The index, or one of its parts; raises NotFound: it is of other weights."""
        start = 0
        for name, size in self.index.sizes():
            if name == digest:
                return bytes(read(self.file, start, start + size))
            start += size
        if digest != self.index.digest():
            raise NotFound(f"these weights are not, nor have a part, {digest.hex()}")
        return self.index.encoded()

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        return self.fetch(digest)[start:end]


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be signed."""

    config: TrainConfig
    corpus: PreparedData
    tokenizer_file: bytes | None  # None: a byte is a token
    start: Start | None  # None: drawn from the seed
    num_rows: int  # to train on

    @property
    def tokenizer(self) -> Digest:
        """Name of the tokenizer; zero: a byte is a token."""
        file = self.tokenizer_file
        return ZERO_DIGEST if file is None else blob_digest(file)

    @property
    def weights(self) -> Digest:
        """Name of the weights to start from."""
        return ZERO_DIGEST if self.start is None else self.start.index.digest()

    @property
    def names(self) -> DataNames:
        """What the job that is signed says of its data."""
        counts = self.corpus.targets
        targets = ZERO_DIGEST if counts is None else counts.digest()
        return DataNames(self.corpus.manifest.digest(), self.tokenizer, self.weights, targets)

    @property
    def length(self) -> str:
        """How long it trains, for a person."""
        passes = self.config.num_steps * self.config.data.rows_per_step / self.num_rows
        return f"{self.config.num_steps} steps, {passes:.4g} passes over {self.num_rows} rows"

    @property
    def num_bytes(self) -> int:
        """Of everything that the market is brought."""
        start = 0 if self.start is None else self.start.index.num_bytes
        return start + self.corpus.num_bytes + len(self.tokenizer_file or b"")


def prepare(
    job: JobFile,
    folder: Path,
    *,
    part_bytes: int = MAX_PART_BYTES,
    say: Say = lambda line: None,
) -> Prepared:
    """Read, check, cut and hash everything that `job` names.

    Args:
        job: The file.
        folder: Where shards of its data are kept, those of equal data once.
        part_bytes: Of the parts of weights.
        say: Told how far the data is, if it takes a while.

    Raises:
        NotFound, Refused, Malformed, TooLarge: missing, unreadable, unfit, too large or too small.
        Conflict: another process prepares the same data.
        ServiceUnreachable: a store of data does not answer.
    """
    model = None if job.model_folder is None else model_in(job.model_folder)
    tokenizer = _tokenizer(job, None if model is None else model.tokenizer)
    if tokenizer is None and model is not None and model.config.vocab_size != BYTE_VOCABULARY:
        named = str(job.model_folder)
        raise Refused(
            f"model: {named} has no tokenizer.json, and without it its tokens mean nothing: make "
            f"it with AutoTokenizer.from_pretrained({named!r}).save_pretrained({named!r}), or "
            "name one as `tokenizer`"
        )
    vocab_size = None if tokenizer is None else tokenizer.vocab_size
    started = None if model is None else model.config
    config = job.train_config(started=started, vocab_size=vocab_size)
    form = None
    if job.objective == "sft":
        own = None if model is None else model.tokenizer
        form = _form(job, own, config.model.sequence_length)
    corpus = _data(job, tokenizer, form, folder, say)
    num_rows = need_enough_rows(corpus.manifest, config)
    config = job.train_config(started=started, vocab_size=vocab_size, num_rows=num_rows)
    start = None if model is None else start_of(model, part_bytes=part_bytes)
    file = None if tokenizer is None else tokenizer.data
    return Prepared(config, corpus, file, start, num_rows)


def model_in(folder: Path) -> "ModelFolder":
    """The model of a folder of `transformers`; raises Refused: the extra is missing, and more."""
    try:
        from training.models.folder import read_folder
    except ImportError as error:
        raise Refused(
            f"model: reading {folder} needs numpy and safetensors: pip install 'tallystick[models]'"
        ) from error
    return read_folder(folder)


def start_of(model: "ModelFolder", *, part_bytes: int = MAX_PART_BYTES) -> Start:
    """What of a folder travels, its weights and what is beside them; raises TooLarge."""
    from training.models.folder import beside_bytes
    from training.models.weights import weights_source

    file = weights_source(model.weights, beside_bytes(model.beside))
    if file.num_bytes > MAX_WHOLE_BYTES:
        raise TooLarge(
            f"the weights of the model have {file.num_bytes} bytes, a job starts from at most "
            f"{MAX_WHOLE_BYTES}: use a smaller one",
            size=file.num_bytes,
            limit=MAX_WHOLE_BYTES,
        )
    return Start(file, parts_of(file, part_bytes=part_bytes), tuple(model.beside))


def _tokenizer(job: JobFile, own: Path | None) -> TokenFile | None:
    """The one that the file names, else the model's own, else that of a prepared folder."""
    path = own if job.tokenizer is None else Path(job.tokenizer)
    data = _prepared_folder(job)
    if path is None and data is not None and (data / TOKENIZER).exists():
        path = data / TOKENIZER
    found = None if path is None else read_token_file(path)
    if found is not None and len(found.data) > MAX_BLOB_BYTES:
        raise TooLarge(
            f"the tokenizer has {len(found.data)} bytes, a blob at most {MAX_BLOB_BYTES}: use a "
            "smaller one",
            size=len(found.data),
            limit=MAX_BLOB_BYTES,
        )
    return found


def _form(job: JobFile, own: Path | None, sequence_length: int) -> ChatForm:
    path = own if job.tokenizer is None else Path(job.tokenizer)
    if path is None:
        raise Refused(
            "tokenizer: objective sft needs one with a chat template: name a model's folder as "
            "`model`, or its tokenizer.json as `tokenizer`"
        )
    if _prepared_folder(job) is not None:
        raise Refused(
            "data: objective sft reads chats, not what `tallystick data prepare` made of texts: "
            "name files of JSON lines"
        )
    return chat_form(read_template(path), sequence_length)


def _prepared_folder(job: JobFile) -> Path | None:
    sources = job.documents.sources
    is_one = len(sources) == 1 and is_prepared(Path(sources[0]))
    return Path(sources[0]) if is_one else None


def _data(
    job: JobFile, tokenizer: TokenFile | None, form: ChatForm | None, folder: Path, say: Say
) -> PreparedData:
    """What was prepared, or is now: one folder below `folder` for each recipe."""
    if (done := _prepared_folder(job)) is not None:
        found, wanted = load_prepared(done), tokenizer
        if found.tokenizer != (ZERO_DIGEST if wanted is None else blob_digest(wanted.data)):
            made = "bytes" if found.tokenizer == ZERO_DIGEST else "another tokenizer"
            raise Refused(
                f"data: {done} was prepared with {made}: prepare it with the tokenizer of the job, "
                "or name its own as `tokenizer`"
            )
        if found.targets is not None:
            raise Refused(f"data: {done} holds chats, prepared for a job with `objective: sft`")
        return found
    said = job.documents
    recipe = recipe_of(said.sources, field=said.field, tokenizer=tokenizer, form=form)
    return prepare_data(recipe, folder / recipe.digest.hex()[:32], say=say)
