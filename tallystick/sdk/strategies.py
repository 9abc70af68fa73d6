"""What would a job's peers send, and how fast would it be, with each strategy? Pure.

An estimate for choosing, from the JobSpec and what offers say of speed and line. Per round, of the
peer that sends most, with n peers in its stage of P parameters:

    exchange     (n - 1) / n x (bytes of P in the codec of shards + bytes of P in that of means)
    boundaries   its items x stages beside its own (1 or 2) x rows x T x D in their codec

A peer cuts its vector into buckets, sends all but its own part of them to those that sum them, and
its own sum to the others (training/averaging, docs/protocol.md 3); local steps have no boundaries.

    computing    every_step: items x FLOPs of the busiest stage / (n x mean FLOP/s): items are dealt
                 by speed. local: segments x FLOPs / least FLOP/s: a round waits for all
    lines        bytes of that peer / least bandwidth
    tokens/s     tokens of a round / the longer of both, so an upper bound; of local without overlap
                 / their sum

T = tokens of a row, D = model width. Amounts in base units, rates in millionths.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import Malformed
from contracts.terms.ids import MAX_PEERS
from contracts.terms.messages import JobSpec, Offer
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed
from market.bodies.base import Body, Money, Wide
from market.bodies.offers import HEARTBEAT_MILLIS, OfferView
from tallystick.sdk.checking import checking_plan
from tallystick.sdk.job_file import USUAL_CLASS, JobFile, LocalFields, ModelFields
from training.compression.formats import FORMATS, exchanged_bytes
from training.config import ModelConfig, StageSlice, slices_of
from training.memory import num_parameters

WORTH = 2
"""Local steps learn less from a token: they are advised where they are so many times as fast."""


class Machine(NamedTuple):
    """What an offer says that it has."""

    flops_per_second: int
    bandwidth: int  # bytes a second


class StrategyPlan(Body):
    """What a job would send, and how fast it would be, with one strategy."""

    strategy: Literal["every_step", "local"]
    peers: int
    tokens_a_round: Wide
    bytes_a_round: Wide  # that the busiest peer sends
    bytes_a_second: Wide | None  # None: too few offers fit now
    tokens_a_second: Wide | None
    tokens_a_second_computing: Wide | None  # were lines no limit
    tokens_a_second_lines: Wide | None  # were computing none
    audit_rate: int | None  # of a newcomer's claims; None: unchecked
    stake: Money


def machines_for(
    spec: JobSpec, offers: Sequence[OfferView], now: UnixMillis
) -> tuple[Machine, ...]:
    """The cheapest open offers that have the memory at the price, one of an account, for all peers.

    Fewer than the job wants where there are no more.
    """
    slots = spec.batch.stages * spec.batch.peers_per_stage
    found: dict[bytes, Machine] = {}
    for view in sorted(offers, key=lambda each: each.price):
        fits = view.memory_bytes >= spec.memory_bytes and view.price <= spec.price_ceiling
        is_heard = view.heard_at is not None and now - view.heard_at <= HEARTBEAT_MILLIS
        if fits and is_heard and view.state == "open" and view.account not in found:
            found[view.account] = Machine(view.flops_per_second, _offer(view).bandwidth)
    return tuple(found.values())[:slots]


def _offer(view: OfferView) -> Offer:
    offer = decode_signed(view.signed).message
    if not isinstance(offer, Offer):
        raise Malformed("the market shows as an offer what is none")
    return offer


def strategy_plan(
    spec: JobSpec, config: ModelConfig, machines: Sequence[Machine], price: PricePerPflop
) -> StrategyPlan:
    """What a job sends, and how fast it is.

    Args:
        spec: The job.
        config: Its model.
        machines: That would work in it (`machines_for`).
        price: That a PFLOP would cost, in base units.
    """
    batch, checking = spec.batch, checking_plan(spec, price)
    peers = batch.stages * batch.peers_per_stage
    tokens = batch.units_per_step * batch.rows_per_unit * config.sequence_length
    sent = max(_bytes_a_round(spec, config, each) for each in slices_of(config, batch.layer_ends))
    computing = lines = None
    if len(machines) >= peers:
        computing = tokens / _seconds(spec, machines)
        bandwidth = min(each.bandwidth for each in machines)
        lines = Fraction(tokens * bandwidth, sent) if sent else None
    speed = _speed(spec, [each for each in (computing, lines) if each is not None])
    return StrategyPlan(
        strategy=spec.strategy,
        peers=peers,
        tokens_a_round=tokens,
        bytes_a_round=sent,
        bytes_a_second=None if speed is None else int(sent * speed / tokens),
        tokens_a_second=None if speed is None else int(speed),
        tokens_a_second_computing=None if computing is None else int(computing),
        tokens_a_second_lines=None if lines is None else int(lines),
        audit_rate=None if checking is None else checking.first_rate,
        stake=spec.min_stake,
    )


def _speed(spec: JobSpec, limits: Sequence[Fraction]) -> Fraction | None:
    if spec.batch.local is None or spec.batch.works_ahead or not limits:
        return min(limits, default=None)
    return 1 / sum((1 / each for each in limits), Fraction())


def _bytes_a_round(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    batch, rules = spec.batch, spec.rules
    parameters, peers = num_parameters(config, stage), batch.peers_per_stage
    exchanged = exchanged_bytes(rules.part_codecs, parameters, peers, batch.num_vectors)
    items, neighbours = -(-batch.units_per_step // peers), _num_neighbours(stage)
    elements = batch.rows_at_once * config.sequence_length * config.width
    return exchanged + items * neighbours * FORMATS[rules.boundary_codec].num_bytes(elements)


def _num_neighbours(stage: StageSlice) -> int:
    return (not stage.has_embedding) + (not stage.has_head)


def _seconds(spec: JobSpec, machines: Sequence[Machine]) -> Fraction:
    """Of computing in a round."""
    batch, speeds = spec.batch, [each.flops_per_second for each in machines]
    dearest = max(spec.item_flops)
    if batch.local is not None:
        return Fraction(batch.local.segments * dearest, min(speeds))
    of_a_stage = Fraction(batch.peers_per_stage * sum(speeds), len(speeds))
    return batch.units_per_step * dearest / of_a_stage


def other_strategy(job: JobFile, spec: JobSpec) -> JobFile:
    """The same tokens of text and number of peers with the other strategy; its model is not said.

    Local steps are in rounds as the defaults of a job file are. Of every_step each peer has a unit
    a step, of as many rows.
    """
    batch = spec.batch
    changed: dict[str, object] = {
        "model": ModelFields(),
        "stages": 1,
        "layer_ends": None,
        "gradient_codec": None,
        "rows_per_unit": batch.rows_at_once,
        "passes": None,
    }
    if batch.local is not None:
        return job.model_copy(
            update=changed
            | {
                "strategy": "every_step",
                "units_per_step": batch.peers_per_stage,
                "steps": batch.optimizer_steps,
            }
        )
    local, peers = LocalFields(), min(MAX_PEERS, batch.stages * batch.peers_per_stage)
    steps_a_peer = -(-batch.steps * batch.units_per_step // peers)
    return job.model_copy(
        update=changed
        | {
            "strategy": "local",
            "local": local,
            "units_per_step": None,
            "peers_per_stage": peers,
            "device_class": job.device_class or USUAL_CLASS,
            "steps": -(-steps_a_peer // local.inner_steps),
        }
    )


def recommended(plans: Sequence[StrategyPlan]) -> str:
    """Which of both to take, and why, in a sentence."""
    speeds = {each.strategy: each.tokens_a_second for each in plans}
    every_step, local = speeds.get("every_step"), speeds.get("local")
    if every_step is None or local is None:
        return "too few offers fit to say which strategy is faster"
    if local >= WORTH * max(1, every_step):
        return (
            f"take local: at most {local} tokens/s, every_step at most {every_step} on these lines"
        )
    return (
        f"take every_step: it learns more from a token, and local is not {WORTH} times as fast "
        f"({local} against {every_step} tokens/s at most)"
    )
