"""What would a job cost, how long would it take, and why? A dry run that moves nothing.

The market says what its offers decide (`POST /v1/jobs/quote`); the rest follows from the JobSpec
that a submission would sign. Every number has its formula in `Plan.why`, under its name.
Amounts are in base units, prices in base units a PFLOP, rates and parts in millionths.
"""

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from pathlib import Path

from contracts.terms.amounts import BaseUnits, in_tokens
from contracts.terms.errors import Refused
from contracts.terms.ids import Address
from contracts.terms.messages import MILLION, JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.advice import in_words
from market.bodies.base import Body, Money, Price, Wide
from market.bodies.jobs import AdviceView, Excluded, QuoteRequest, QuoteView, StageQuoteView
from market.bodies.routes import GET_NETWORK, GET_OFFERS, POST_QUOTE
from tallystick.sdk.checking import CheckingPlan, checking_plan
from tallystick.sdk.client import MarketClient
from tallystick.sdk.funding import LAST_ROUNDS, ROOM, funding_of, taken
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.job_spec import USUAL_STAKE, Prepared, build_spec, prepare, with_funding
from tallystick.sdk.parts import with_model_of_job
from tallystick.sdk.strategies import (
    StrategyPlan,
    machines_for,
    other_strategy,
    recommended,
    strategy_plan,
)
from training.config import TrainConfig, whole_model
from training.data.prepare import Say
from training.disk import lease_disk
from training.memory import num_parameters
from verification.distances.thresholds import shipped_calibration

NOBODY = Address(bytes(20))
TIGHT = 2  # a deadline that leaves less than so many times the computing is called tight


class CostPlan(Body):
    """What is paid for work, and apart from it for checking."""

    work_at_ceiling: Money
    work_at_asks: Money | None  # None: nothing matches now
    verification_budget: Money
    total_at_ceiling: Money
    budget: Money
    least_budget: Money  # with room for the limits of the last steps
    advised_budget: Money  # with room for providers that come and go
    comes_back: Money


class PricePlan(Body):
    """What a PFLOP may cost, and what it would cost now."""

    ceiling: Price
    at_asks: Price | None
    lowest_losing_ask: Price | None


class TimePlan(Body):
    """Seconds of computing, and the deadlines around them."""

    seconds: int | None
    seconds_until_deadline: int
    fits_deadline: bool | None


class LimitsPlan(Body):
    """How much of the budget the coordinator may set aside for workers, and what it will."""

    burst: Money  # at once
    rate: Money  # and more, an hour
    first: Money  # first limits of all members, spares and auditors
    pay_an_hour: Money
    confirmations: int


class StakePlan(Body):
    """What each provider puts at stake, and how long it works for as much."""

    each: Money
    lag_pay: Money  # what it would have to be to cover a liar's pay that waits
    hours_of_income: int | None  # thousandths


class OffersPlan(Body):
    """What the market has for it now."""

    offers: int
    owners: int
    slots: int
    spares: int | None
    spares_wanted: int


class Plan(Body):
    """A dry run of a job file; `fits` if it would be admitted and matched now."""

    name: str
    fits: bool
    length: str  # steps, and how often they go through the rows
    parameters: Wide
    tokens: Wide
    flops: Wide
    upload_bytes: int
    disk_bytes: int  # that the folder of a peer may take
    devices: tuple[str, ...] | None  # classes that a checked job takes; None: any
    cost: CostPlan
    price: PricePlan
    time: TimePlan
    stages: tuple[StageQuoteView, ...]
    checking: CheckingPlan | None
    limits: LimitsPlan
    stake: StakePlan
    offers: OffersPlan
    reasons: tuple[str, ...]
    not_matched: tuple[Excluded, ...]
    advice: AdviceView | None
    advice_in_words: str
    strategies: tuple[StrategyPlan, ...]  # that of the file, then the other one, if it can be
    which_strategy: str  # to take, and why
    warnings: tuple[str, ...]
    costly: tuple[str, ...]  # those of the warnings that cost money: `submit` asks first
    why: dict[str, str]


def devices_of(is_checked: bool) -> tuple[str, ...] | None:
    """Device classes that a job takes, sorted; None: any."""
    if not is_checked:
        return None
    calibration = shipped_calibration()
    return tuple(filter(calibration.admits, calibration.classes))


async def plan(
    client: MarketClient, job: JobFile, *, data: Path, say: Say = lambda line: None
) -> Plan:
    """What submitting `job` now would mean; nothing is signed, uploaded or reserved.

    Args:
        client: The market.
        job: The file.
        data: Folder for shards of its data, as `submit` has it.
        say: Told how far the data is, if it takes a while.

    Raises:
        NotFound, Refused: what the file names is missing, or its numbers do not fit each other.
        Unavailable: the market does not answer.
    """
    job = await with_model_of_job(client, job, data, say=say)
    prepared, network = prepare(job, data, say=say), await client.call(GET_NETWORK)
    now = UnixSeconds(network.clock // 1000)
    spec, quote = await draft(
        client, job, prepared, poster=NOBODY, now=now, confirmations=network.confirmations
    )
    plans, which = await _strategies(client, job, spec, prepared, quote, network.clock)
    found = plan_of_draft(spec, prepared, quote, now)
    return found.model_copy(update={"strategies": plans, "which_strategy": which})


async def _strategies(
    client: MarketClient,
    job: JobFile,
    spec: JobSpec,
    prepared: Prepared,
    quote: QuoteView,
    clock: UnixMillis,
) -> tuple[tuple[StrategyPlan, ...], str]:
    """What the job's own strategy would mean and what the other one, and which to take."""
    offers = (await client.call(GET_OFFERS)).offers  # the cheapest, of a long list
    price = spec.price_ceiling if quote.price_at_asks is None else quote.price_at_asks
    model, other = prepared.config.model, other_strategy(job, spec)

    def planned(each: JobSpec) -> StrategyPlan:
        return strategy_plan(each, model, machines_for(each, offers, clock), price)

    try:
        tried = build_spec(
            other,
            other.train_config(started=model),
            poster=spec.poster,
            coordinator=spec.coordinator,
            salt=spec.salt,
            data=prepared.names,
            now=UnixSeconds(0),
            reservable=USUAL_STAKE if quote.reservable is None else quote.reservable,
        )
    except Refused as refusal:
        return (planned(spec),), f"{other.strategy} cannot be: {refusal.message}"
    plans = (planned(spec), planned(tried))
    return plans, recommended(plans)


async def draft(
    client: MarketClient,
    job: JobFile,
    prepared: Prepared,
    *,
    poster: Address,
    now: UnixSeconds,
    confirmations: int,
) -> tuple[JobSpec, QuoteView]:
    """What `poster` would sign but for coordinator, salt and last moment, and the market's quote.

    Args:
        client: The market.
        job: The file.
        prepared: What it names.
        poster: Who would sign.
        now: The market's clock.
        confirmations: That the market waits for.
    """

    def spec_for(reservable: BaseUnits) -> JobSpec:
        return build_spec(
            job,
            prepared.config,
            poster=poster,
            coordinator=NOBODY,
            salt=0,
            data=prepared.names,
            now=now,
            confirmations=confirmations,
            reservable=reservable,
        )

    spec = spec_for(USUAL_STAKE)
    quote = await client.call(POST_QUOTE, QuoteRequest(spec=spec.encoded()))
    if quote.reservable is not None and (fitted := spec_for(quote.reservable)) != spec:
        spec = fitted
        quote = await client.call(POST_QUOTE, QuoteRequest(spec=spec.encoded()))
    return with_funding(spec, job, taken(quote.seconds, spec.deadline - now)), quote


def plan_of_draft(spec: JobSpec, prepared: Prepared, quote: QuoteView, now: UnixSeconds) -> Plan:
    """The plan of what `draft` found."""
    config = prepared.config
    price = spec.price_ceiling if quote.price_at_asks is None else quote.price_at_asks
    checking = checking_plan(spec, price, seconds=quote.seconds)
    funding = funding_of(spec, taken(quote.seconds, spec.deadline - now))
    found = Plan.of(
        quote,
        name=spec.name,
        fits=not quote.reasons,
        length=prepared.length,
        parameters=num_parameters(config.model, whole_model(config.model)),
        tokens=config.num_steps * config.tokens_per_step,
        upload_bytes=prepared.num_bytes,
        disk_bytes=lease_disk(spec),
        devices=devices_of(spec.rules.audit is not None),
        cost=_cost(spec, quote, checking, funding.last_room),
        price=PricePlan.of(quote, ceiling=spec.price_ceiling, at_asks=quote.price_at_asks),
        time=_time(spec, quote, now),
        checking=checking,
        limits=LimitsPlan.of(spec, first=funding.first_limits, pay_an_hour=funding.an_hour),
        stake=_stake(spec, quote, funding.lag_pay),
        offers=OffersPlan.of(quote, spares_wanted=spec.batch.spares),
        advice_in_words=(
            "" if quote.advice is None else in_words(quote.advice, now=now, budget=spec.budget)
        ),
        strategies=(),
        which_strategy="",
        warnings=(),
        costly=(),
        why=_why(spec, config, quote),
    )
    costly, others = tuple(_costly(found)), tuple(_warnings(found))
    return found.model_copy(update={"warnings": costly + others, "costly": costly})


# ------------------------------------------------------------------------------------- the numbers


def _cost(
    spec: JobSpec, quote: QuoteView, checking: CheckingPlan | None, last_room: BaseUnits
) -> CostPlan:
    total = BaseUnits(quote.cost_at_ceiling + quote.verification_budget)
    work = quote.cost_at_ceiling if quote.cost_at_asks is None else quote.cost_at_asks
    expected = work + (0 if checking is None else checking.expected_cost)
    return CostPlan(
        work_at_ceiling=quote.cost_at_ceiling,
        work_at_asks=quote.cost_at_asks,
        verification_budget=quote.verification_budget,
        total_at_ceiling=total,
        budget=spec.budget,
        least_budget=BaseUnits(total + last_room),
        advised_budget=BaseUnits(max(total + last_room, ceil(ROOM * expected))),
        comes_back=BaseUnits(max(0, spec.budget - total)),
    )


def _time(spec: JobSpec, quote: QuoteView, now: UnixSeconds) -> TimePlan:
    left = spec.deadline - now
    return TimePlan(
        seconds=quote.seconds,
        seconds_until_deadline=left,
        fits_deadline=None if quote.seconds is None else quote.seconds <= left,
    )


def _stake(spec: JobSpec, quote: QuoteView, lag_pay: BaseUnits) -> StakePlan:
    hours = None
    if quote.seconds and quote.cost_at_asks:
        income = Fraction(quote.cost_at_asks * 3600, quote.slots * quote.seconds)
        hours = ceil(1000 * spec.min_stake / income)
    return StakePlan(each=spec.min_stake, lag_pay=lag_pay, hours_of_income=hours)


# ----------------------------------------------------------------------------------------- in words


def _why(spec: JobSpec, config: TrainConfig, quote: QuoteView) -> dict[str, str]:
    """Name of a number -> how it is made."""
    batch, row, audit = spec.batch, config.model.sequence_length, spec.rules.audit
    trained = "trainable numbers of the whole model: embedding, layers, head, norms"
    backward = "twice the forward"
    if config.model.adapter is not None:
        trained = "of the adapters alone: rank x (inputs + outputs) of each target"
        backward = "as much as the forward, of adapters and attention twice"
    found = {
        "parameters": trained,
        "tokens": f"{batch.steps} steps x {batch.units_per_step} units x {batch.rows_per_unit} "
        f"rows x {row} tokens of a row",
        "flops": f"{batch.steps} steps x {batch.units_per_step} units x model FLOPs of one unit "
        f"through all stages (2 for each multiply-add, backward {backward})",
        "upload_bytes": "shards of the data, tokenizer, weights to start from; what the market has "
        "stays here",
        "disk_bytes": "four checkpoints, averaged chunks since the older one that is kept, and the "
        "work of the open step" + ("" if audit is None else " and of those whose draws are open"),
        "cost.work_at_ceiling": f"flops / 1e15 x price_ceiling {in_tokens(spec.price_ceiling)} "
        "tokens, rounded down",
        "cost.work_at_asks": "flops / 1e15 x price.at_asks, rounded down",
        "cost.budget": "as the job file says; it goes into the escrow when the job is posted",
        "cost.total_at_ceiling": "work_at_ceiling + verification_budget",
        "cost.advised_budget": "1.25 x (work and audits as expected), and no less than "
        "least_budget: who leaves keeps for a while what was set aside for it",
        "cost.least_budget": f"total_at_ceiling + {LAST_ROUNDS} rounds of pay of all members and "
        "spares: nobody begins a step that its limit may not cover",
        "cost.comes_back": "budget - total_at_ceiling: at least this is free at the end",
        "cost.verification_budget": "0: checking is off",
        "price.ceiling": "as the job file says",
        "price.at_asks": "the lowest losing ask of the offers that fit; the ceiling where nobody "
        "loses",
        "price.lowest_losing_ask": "the cheapest ask that fits and is not bought",
        "time.seconds": "of the slowest stage: computing alone, at the FLOP/s that offers claim",
        "time.seconds_until_deadline": "deadline - the market's clock now",
        "limits.burst": "as the job file says, else 1.25 x limits.first, at most the budget",
        "limits.rate": "as the job file says, else 1.25 x limits.pay_an_hour",
        "limits.first": "members and spares x pay of a round at the ceiling x rounds of an hour (8 "
        f"at least, no more than the job has and {LAST_ROUNDS}); of auditors four reports, at most "
        "verification_budget",
        "limits.pay_an_hour": "total_at_ceiling / hours of computing; where nothing matches now, a "
        "tenth of the time until the deadline, an hour at most",
        "limits.confirmations": "as the job file says, else as many as the market waits for",
        "stake.each": "min_stake of the job file, else 0: work is not checked, so nothing is at "
        "risk",
        "stake.lag_pay": "pay of a round x rounds that pay may wait (vesting_window, deadline of "
        "audits, 5): what a liar can cost; a min_stake of as much covers it",
        "stake.hours_of_income": f"stake / (work_at_asks / {quote.slots} peers / hours that the "
        "job takes), in thousandths",
        "offers.offers": "all that stand at the market now",
        "offers.owners": "accounts with an offer that fits; each sells one slot of a job",
        "offers.slots": f"{batch.stages} stages x {batch.peers_per_stage} peers, all owners apart",
        "offers.spares": "spares that would come now; one seller stays a loser, who sets the price",
        "offers.spares_wanted": "as the job file says",
        "stages.first_layer": "number of the first decoder layer in the stage",
        "stages.end_layer": "number of the first layer after it",
        "stages.item_flops": "model FLOPs of one unit through the stage",
        "stages.memory_bytes": "weights, two moments, gradient and its copies, and the graphs that "
        "wait for their backward; with local steps four copies of the weights more"
        + ("" if audit is None else ", and of one audit beside them"),
        "stages.offers_with_memory": "offers with at least memory_bytes, whatever else they lack",
        "stages.peers": "winners that clearing would deal to the stage",
        "stages.flops_per_second": "the sum of what these peers claim",
        "stages.seconds": "steps x units x item_flops / flops_per_second, rounded up",
    }
    found |= _WHY_STRATEGIES
    return found if audit is None else found | _why_checked(spec.rules.vesting_window)


_WHY_STRATEGIES = {
    "strategies.peers": "stages x peers_per_stage; the other strategy has as many, and as many "
    "tokens in all",
    "strategies.tokens_a_round": "units_per_step x rows of a unit x tokens of a row",
    "strategies.bytes_a_round": "of the peer that sends most: (n - 1) / n x (its parameters in "
    "gradient_codec and once more in the codec of means), n peers a stage, and what crosses to "
    "other stages",
    "strategies.bytes_a_second": "bytes_a_round x tokens_a_second / tokens_a_round",
    "strategies.tokens_a_second": "the lesser of computing and lines, as if they overlapped; of "
    "local steps without local.overlap one after the other",
    "strategies.tokens_a_second_computing": "at the FLOP/s of the cheapest offers that fit: their "
    "mean, with local steps that of the slowest, for which a round waits",
    "strategies.tokens_a_second_lines": "tokens_a_round x the least bandwidth that these offers "
    "claim / bytes_a_round",
    "strategies.audit_rate": "as checking.first_rate",
    "strategies.stake": "as stake.each",
}


def _why_checked(window: int) -> dict[str, str]:
    """The same of a job that is checked."""
    return {
        "cost.verification_budget": "audit_budget of the job file; without it a quarter of the "
        "budget, or if that is more what six steps drawn whole and their repeats cost at the "
        "ceiling",
        "stake.each": "min_stake of the job file; without it what brings a newcomer's draws to the "
        "floor, worth of its part of a step x (margin / (detection power x floor) - 1), but no "
        "more than twice the wanted owners that fit, or all of them, can put up (10 tokens where "
        "too few fit), and no less than covers that part: worth x (margin / detection power - 1)",
        "checking.floor": "audit_rate of the job file: of peer-steps that are drawn at least",
        "checking.first_rate": "q of a newcomer with an equal part of the dearest stage: max("
        "floor, margin x worth / ((stake + worth) x detection power))",
        "checking.later_rate": f"the same with {window} steps of pay waiting, which it would lose "
        "too",
        "checking.expected_extra_flops": "every step's FLOPs x its q x (1 + repeat_rate), summed "
        "over stages and steps",
        "checking.expected_extra": "expected_extra_flops / flops, in millionths",
        "checking.later_extra": f"later_rate x (1 + repeat_rate): of the steps behind the first "
        f"{window} of a lease, in millionths",
        "checking.expected_seconds": "time.seconds x expected_extra, rounded up",
        "checking.expected_cost": "expected_extra_flops / 1e15 x price.at_asks, or the ceiling; "
        "from verification_budget",
    }


# ----------------------------------------------------------------------------------------- warnings


def _costly(found: Plan) -> Iterator[str]:
    """What a poster would want to be asked about before he signs: it costs money."""
    if found.price.at_asks is not None and found.price.lowest_losing_ask is None:
        yield (
            "no offer that fits would be left over, so nobody's ask sets the price: you would pay "
            f"your ceiling of {in_tokens(found.price.ceiling)} tokens per PFLOP"
        )
    if found.offers.spares is not None and found.offers.spares < found.offers.spares_wanted:
        yield (
            f"{found.offers.spares} of {found.offers.spares_wanted} spares would come: a stage "
            "that loses its peers waits for others, and the deadline does not"
        )
    if found.cost.total_at_ceiling <= found.cost.budget < found.cost.least_budget:
        yield (
            f"a budget below {in_tokens(found.cost.least_budget)} tokens may leave no room for the "
            "limits of the last steps: they would wait until you top it up"
        )
    yield from _costly_time(found.time)
    if found.checking and found.checking.expected_cost > found.cost.verification_budget:
        yield (
            f"audits are expected to cost {in_tokens(found.checking.expected_cost)} tokens, "
            f"audit_budget is {in_tokens(found.cost.verification_budget)}: the job would end when "
            "that is spent"
        )


def _costly_time(time: TimePlan) -> Iterator[str]:
    left = time.seconds_until_deadline
    if time.seconds is not None and time.seconds > left:
        yield (
            f"computing alone takes {time.seconds} s, the deadline is in {left} s: the job would "
            "end unfinished"
        )
    elif time.seconds is not None and TIGHT * time.seconds > left:
        yield (
            f"the deadline is tight: computing takes {time.seconds} of {left} s, and sending, "
            "averaging and audits come on top"
        )


def _warnings(found: Plan) -> Iterator[str]:
    """What else a poster would want to know."""
    checking, cost, stake = found.checking, found.cost, found.stake
    if cost.least_budget <= cost.budget < cost.advised_budget:
        yield (
            f"a budget of {in_tokens(cost.advised_budget)} tokens leaves room for providers that "
            "come and go: who leaves keeps for a while what was set aside for it"
        )
    if found.limits.rate < found.limits.pay_an_hour:
        yield (
            f"rate is {in_tokens(found.limits.rate)} tokens an hour, the work would earn "
            f"{in_tokens(found.limits.pay_an_hour)}: it would wait for limits"
        )
    if checking is None:
        yield "checking is off: nobody does any of the work again, so a lazy provider is paid"
        return
    if checking.first_rate >= MILLION:
        yield (
            "the stake covers a newcomer's first steps only if all of them are drawn: raise "
            "min_stake for fewer audits"
        )
    if stake.each < stake.lag_pay:
        yield (
            f"min_stake covers less than a liar may cost before it is found: "
            f"{in_tokens(stake.lag_pay)} tokens would"
        )
    if any(stage.peers is not None and stage.peers < 3 for stage in found.stages):
        yield "a stage has fewer than three owners: its work is audited mostly from outside"
