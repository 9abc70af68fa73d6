"""From a checked job file to the JobSpec that its poster signs: stages, stakes, audits, chunks.

Amounts in base units, spans in milliseconds, moments in Unix seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from pydantic import ValidationError

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import MAX_CHUNKS, ZERO_DIGEST, Address, Digest
from contracts.terms.messages import MILLION, AuditSpec, BatchSpec, DataSpec, JobSpec, RulesSpec
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.job_file import JobFile
from training.config import (
    ModelConfig,
    StageSlice,
    TrainConfig,
    model_spec,
    optimizer_spec,
    scaled,
    shares_embedding,
    slices_of,
)
from training.flops import unit_flops
from training.memory import FP32, num_parameters, peer_memory
from training.planner import plan_layers
from verification.distances.thresholds import shipped_digest
from verification.draws.economics import least_budget, stakes_among_equals, terms_of

USUAL_STAKE = BaseUnits(10 * 10**6)
"""What a provider holds where no market says more: the stake of `provider start`."""


def cut(job: JobFile, config: TrainConfig) -> tuple[int, ...]:
    """`layer_ends`: as the file says, else as planned.

    Raises:
        Refused: `layer_ends` that are not as many as `stages`, or a cut that cannot be.
    """
    rows, audits = config.data.rows_per_unit, job.checking == "on"
    if job.layer_ends is None:
        return plan_layers(
            config.model, job.stages, rows, memory_bytes=job.peer_memory, audits=audits
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
    rows, audits = config.data.rows_per_unit, job.checking == "on"
    return max(peer_memory(config.model, each, rows, audits=audits) for each in stages)


@dataclass(frozen=True)
class DataNames:
    """Digests of what a job is given: zero for what it does without."""

    manifest: Digest  # of the corpus
    tokenizer: Digest = ZERO_DIGEST
    weights: Digest = ZERO_DIGEST  # of the model that it starts from


def build_spec(
    job: JobFile,
    config: TrainConfig,
    *,
    poster: Address,
    coordinator: Address,
    nonce: int,
    data: DataNames,
    now: UnixSeconds,
    reservable: BaseUnits = USUAL_STAKE,
) -> JobSpec:
    """What the poster signs.

    `reservable` bounds the stake that a checked job asks for if its file says none.

    Raises:
        Malformed: a value does not fit its message field.
        Refused: sizes that do not fit each other, or a number finer than its message field.
    """
    ends = cut(job, config)
    stages = slices_of(config.model, ends)
    rows = config.data.rows_per_unit
    flops = tuple(unit_flops(config.model, stage, rows) for stage in stages)
    try:
        audit = _audit(job, config, flops)
        return JobSpec(
            poster=poster,
            coordinator=coordinator,
            nonce=nonce,
            name=job.name,
            budget=BaseUnits(job.budget),
            epoch_cap=BaseUnits(job.budget if job.epoch_cap is None else job.epoch_cap),
            price_ceiling=PricePerPflop(job.price_ceiling),
            deadline=UnixSeconds(now + int(job.deadline.total_seconds())),
            min_stake=_min_stake(job, config, flops, audit, reservable),
            memory_bytes=_memory(job, config, stages),
            unit_flops=flops,
            model=model_spec(config.model, weights=data.weights),
            optimizer=optimizer_spec(config.optimizer),
            data=DataSpec(manifest=data.manifest, seed=config.data.seed, tokenizer=data.tokenizer),
            batch=BatchSpec(
                steps=config.num_steps,
                units_per_step=config.data.units_per_step,
                rows_per_unit=rows,
                stages=len(ends),
                layer_ends=ends,
                peers_per_stage=job.peers_per_stage,
                spares=job.spares,
                chunks=job.chunks or _chunks(config.model, stages, job.peers_per_stage),
                checkpoint_every=job.checkpoint_every,
                validate_every=job.validate_every or config.num_steps,
            ),
            rules=RulesSpec(
                audit=audit,
                boundary_codec=job.boundary_codec,
                gradient_codec=job.gradient_codec,
                vesting_window=job.vesting_window,
                commit_timeout=_millis(job.commit_timeout),
                exchange_timeout=_millis(job.exchange_timeout),
                redo_after=_millis(job.redo_after),
                lease_grace=_millis(job.lease_grace),
            ),
        )
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise Malformed(f"job: {'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error


AUDIT_MARGIN = Fraction(5, 4)  # m of docs/protocol.md 7
AUDIT_DETECTION = Fraction(99, 100)  # of a falsified peer-step by one replay, at the least
AUDIT_DEADLINE = 4  # D, steps
AUDIT_BUDGET = Fraction(1, 4)  # of the job's budget, unless its file or `least_budget` says more


def _audit(job: JobFile, config: TrainConfig, flops: Sequence[Flops]) -> AuditSpec | None:
    """How the job is checked; None if it is not."""
    if job.checking == "off":
        return None
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
    """As the file says, else what brings the draws to their floor, as far as it can be reserved."""
    if job.min_stake is not None:
        return BaseUnits(job.min_stake)
    if audit is None:
        return BaseUnits(0)
    stakes = stakes_among_equals(
        terms_of(audit, job.vesting_window),
        unit_flops=flops,
        units=-(-config.data.units_per_step // job.peers_per_stage),
        price=PricePerPflop(job.price_ceiling),
        owners=job.peers_per_stage,
    )
    return stakes.within(reservable)  # 0 if no stake would do: the market says why


def _chunks(model: ModelConfig, stages: tuple[StageSlice, ...], peers_per_stage: int) -> int:
    """Two for each peer, so that a fast one sums more of them; none beyond what a call carries."""
    shared = model.vocab_size * model.width if model.tied_head and len(stages) > 1 else 0
    own = [
        num_parameters(model, stage) - (shared if shares_embedding(model, stage) else 0)
        for stage in stages
    ]
    sizes = [*own, shared] if shared else own
    needed = -(-FP32 * max(sizes) // MAX_CHUNK_BYTES)
    most = MAX_CHUNKS // 2 if shared else MAX_CHUNKS  # a GradCommit then has twice as many parts
    return min(max(2 * peers_per_stage, needed), most, min(sizes))


def _millis(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)
