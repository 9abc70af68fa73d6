"""May this job be posted? If not: what would fit. Pure.

A job that is admitted can be trained, matched and paid as far as its own numbers decide; whether
an offer wants it is matching's question. Every refusal carries in its data what would be admitted.
"""

from dataclasses import dataclass, replace

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, format_tokens
from contracts.terms.errors import Conflict, Expired, Forbidden, NotFound, Refused, Unaffordable
from contracts.terms.ids import MAX_CHUNKS, ZERO_DIGEST, Digest
from contracts.terms.messages import AuditSpec, JobSpec
from contracts.terms.moments import UnixSeconds
from market.domain.matching import bundle_of
from market.domain.sizes import (
    Terms,
    affordable_price,
    affordable_steps,
    check_sizes,
    job_cost,
    step_flops,
)
from training.config import ModelConfig, slices_of, train_config
from training.flops import item_flops
from training.planner import stage_memories
from verification.distances.thresholds import Calibration
from verification.draws.economics import least_budget, stakes_among_equals, terms_of

SHORTEST_JOB_SECONDS = 60
MAX_SLOTS = 4096


@dataclass(frozen=True)
class Surroundings:
    """What admission needs to know beside the spec."""

    now: UnixSeconds
    missing_blobs: tuple[str, ...]
    """Blobs that the spec names and the market does not hold: manifest, tokenizer, weights."""
    coordinator_known: bool
    calibration: Calibration
    """The table that this market ships: verdicts of its checked jobs follow from it."""
    free_bytes: int | None = None
    """Of the disk that blobs are kept on; None: not known."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What the poster has to bring before the job can be posted."""
        return (() if self.coordinator_known else ("coordinator",)) + self.missing_blobs


def check_job(spec: JobSpec, around: Surroundings) -> None:
    """Refuse a job that could not be trained and paid as it is signed.

    Raises:
        Refused: with what would fit; see the checks below for the classes.
    """
    check_terms(spec, around)
    if not around.coordinator_known:
        raise Forbidden(
            f"0x{spec.coordinator.hex()} is no coordinator of a host here; POST /v1/coordinators",
            coordinator=spec.coordinator.hex(),
        )
    if around.missing_blobs:
        raise NotFound(
            f"not in the blob store, or not all parts of it: {', '.join(around.missing_blobs)}; "
            "PUT /v1/blobs/{digest} first",
            missing=list(around.missing_blobs),
        )


def check_terms(spec: JobSpec, around: Surroundings) -> None:
    """Refuse a job by its own numbers; what its poster brings before posting is not asked for.

    Raises:
        Refused: with what would fit.
    """
    _check_deadline(spec, around)
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    _check_work(spec, config)
    _check_memory(spec, config)
    check_sizes(spec, config, around.free_bytes)
    _check_budget(spec)
    if spec.rules.audit is not None:
        _check_calibration(spec.rules.audit, around)
        _check_stake(spec, spec.rules.audit)


def could_be_posted(spec: JobSpec, terms: Terms) -> bool:
    """Whether the job with these terms would be admitted, with a budget that covers it."""
    chunks = replace(spec.chunking, num_stages=terms.cut.stages)
    if terms.deadline < terms.start // 1000 + SHORTEST_JOB_SECONDS:
        return False
    if terms.cut.slots + spec.batch.spares > MAX_SLOTS or chunks.num_all > MAX_CHUNKS:
        return False
    if spec.rules.audit is None:
        return True
    least = _least_stake(
        spec,
        spec.rules.audit,
        (terms.cut.dearest_unit,),
        owners=terms.cut.peers_per_stage,
        price=terms.price_ceiling,
    )
    return least is not None and terms.min_stake >= least


def least_budget_at(spec: JobSpec, price: PricePerPflop) -> BaseUnits:
    """What covers all of the work at `price`, and its audits."""
    audit, work = spec.rules.audit, job_cost(spec, price)
    audits = 0 if audit is None else max(audit.budget, _least_audits(spec, audit, price))
    return BaseUnits(work + audits)


def named_blobs(spec: JobSpec) -> dict[str, Digest]:
    """The blobs that a job cannot start without, by what they are."""
    optional = {
        "tokenizer": spec.data.tokenizer,
        "targets": spec.data.targets,
        "weights": spec.model.weights,
    }
    named = {what: name for what, name in optional.items() if name != ZERO_DIGEST}
    return {"manifest": spec.data.manifest, **named}


def signed_flops(spec: JobSpec, config: ModelConfig) -> tuple[Flops, ...]:
    """What `item_flops` of a spec has to be: one number for each stage."""
    slices = slices_of(config, spec.batch.layer_ends)
    return tuple(item_flops(config, each, spec.batch.rows_per_unit) for each in slices)


def needed_memory(spec: JobSpec, config: ModelConfig) -> int:
    """Bytes that a peer of the largest stage needs."""
    return max(stage_memories(spec, config))


def _check_deadline(spec: JobSpec, around: Surroundings) -> None:
    if spec.open_by <= around.now:
        raise Expired(
            "the time in which the escrow opens the job is over",
            open_by=spec.open_by,
            now=around.now,
        )
    earliest = around.now + SHORTEST_JOB_SECONDS
    if spec.deadline < earliest:
        raise Expired(
            f"the deadline is less than {SHORTEST_JOB_SECONDS} s away",
            deadline=spec.deadline,
            would_fit=earliest,
        )


def _check_work(spec: JobSpec, config: ModelConfig) -> None:
    derived = signed_flops(spec, config)
    if spec.item_flops != derived:
        raise Conflict(
            "item_flops is not what the model's config says",
            signed=[str(flops) for flops in spec.item_flops],
            would_fit=[str(flops) for flops in derived],
        )
    bundle = bundle_of(spec)
    if bundle.slots + bundle.spares > MAX_SLOTS:
        raise Refused(
            f"at most {MAX_SLOTS} peers in all stages, spares included", would_fit=MAX_SLOTS
        )


def _check_memory(spec: JobSpec, config: ModelConfig) -> None:
    needed = needed_memory(spec, config)
    if spec.memory_bytes < needed:
        raise Refused(
            f"memory_bytes is {spec.memory_bytes}, a peer of the largest stage needs {needed}",
            memory_bytes=spec.memory_bytes,
            would_fit=needed,
        )


def _check_budget(spec: JobSpec) -> None:
    audit = spec.rules.audit
    audits = 0 if audit is None else audit.budget
    cost, for_work = job_cost(spec, spec.price_ceiling), max(0, spec.budget - audits)
    if cost > for_work:
        raise Unaffordable(
            f"at its price ceiling the job costs {format_tokens(cost)} tokens and its audits up to "
            f"{format_tokens(audits)}, its budget is {format_tokens(spec.budget)}",
            cost=str(cost),
            audit_budget=str(audits),
            budget=str(spec.budget),
            budget_would_fit=str(cost + audits),
            price_ceiling_would_fit=str(affordable_price(spec, for_work)),
            steps_would_fit=affordable_steps(spec, for_work),
        )
    if audit is not None:
        _check_audit_budget(spec, audit)


def _check_audit_budget(spec: JobSpec, audit: AuditSpec) -> None:
    """It covers all steps that wait for their beacons at once, drawn whole."""
    least = _least_audits(spec, audit, spec.price_ceiling)
    if audit.budget < least:
        raise Unaffordable(
            f"the audit budget is {format_tokens(audit.budget)} tokens; the steps that may wait "
            f"for their audits at the same time, drawn whole, need {format_tokens(least)}",
            audit_budget=str(audit.budget),
            audit_budget_would_fit=str(least),
        )


def _least_audits(spec: JobSpec, audit: AuditSpec, ceiling: PricePerPflop) -> BaseUnits:
    return least_budget(
        terms_of(audit, spec.rules.vesting_window),
        step_flops=step_flops(spec),
        steps=spec.batch.steps,
        dearest=max(audit.price, ceiling),
    )


def _least_stake(
    spec: JobSpec,
    audit: AuditSpec,
    item_flops: tuple[Flops, ...],
    *,
    owners: int,
    price: PricePerPflop,
) -> BaseUnits | None:
    """What covers one unit of the dearest stage; None if no stake does."""
    return stakes_among_equals(
        terms_of(audit, spec.rules.vesting_window),
        item_flops=item_flops,
        units=1,
        price=price,
        owners=owners,
    ).least


def _check_calibration(audit: AuditSpec, around: Surroundings) -> None:
    shipped = around.calibration.digest()
    if audit.thresholds != shipped:
        raise Conflict(
            "the job names another calibration table than the one that this market ships",
            thresholds=audit.thresholds.hex(),
            would_fit=shipped.hex(),
        )
    known = sorted(filter(around.calibration.admits, around.calibration.classes))
    if audit.device_class and audit.device_class not in known:
        raise Refused(
            f"the calibration table holds no device class {audit.device_class!r}: name one of it",
            device_class=audit.device_class,
            would_fit=", ".join(known),
        )


def _check_stake(spec: JobSpec, audit: AuditSpec) -> None:
    """What a lease asks for covers one unit of the dearest stage (docs/protocol.md 7: q <= 1)."""
    owners = spec.batch.peers_per_stage
    least = _least_stake(spec, audit, spec.item_flops, owners=owners, price=spec.price_ceiling)
    if least is None:
        raise Refused(
            "no stake covers the work of two owners who only audit each other: repeat some "
            "reports outside (repeat_rate), or have three peers a stage (peers_per_stage)",
            repeats=audit.repeats,
            peers_per_stage=owners,
        )
    if spec.min_stake < least:
        raise Refused(
            f"min_stake is {format_tokens(spec.min_stake)} tokens; with {owners} owners in a stage "
            f"one unit of the dearest, at the price ceiling, needs {format_tokens(least)}: raise "
            "min_stake, or lower price_ceiling or rows_per_unit",
            min_stake=str(spec.min_stake),
            min_stake_would_fit=str(least),
        )
