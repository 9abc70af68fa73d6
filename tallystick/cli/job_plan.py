"""How a plan of a job reads: its cost and time, who would work, what is in the way."""

from collections.abc import Iterator
from datetime import timedelta

from rich.console import RenderableType
from rich.table import Table

from contracts.terms.amounts import in_tokens
from contracts.terms.messages import MILLION
from market.bodies.jobs import StageQuoteView
from tallystick.cli.output import facts, table
from tallystick.sdk.checking import CheckingPlan, checking_phrases
from tallystick.sdk.plan import Plan
from tallystick.sdk.strategies import StrategyPlan

PFLOP = 10**15
MB = 10**6
NOW = "nothing matches now"


def plan_lines(plan: Plan, *, why: bool = False) -> Iterator[RenderableType]:
    """A plan for a person.

    Args:
        plan: What was found.
        why: With the formula of every number.
    """
    yield facts(f"{plan.name}: {_verdict(plan)}; nothing was signed or moved", _rows(plan))
    yield _stages(plan.stages)
    if plan.which_strategy:
        yield _strategies(plan.strategies)
        yield plan.which_strategy
    yield from _obstacles(plan)
    if plan.checking is not None:
        yield from (f"cheaper checking, more work with {each}" for each in plan.checking.cheaper)
    for each in plan.warnings:
        yield f"{'warning, costs money' if each in plan.costly else 'warning'}: {each}"
    if why:
        yield table("how each number is made", ("number", "formula"), plan.why.items())


def _verdict(plan: Plan) -> str:
    return "would be matched now" if plan.fits else "would not be matched now"


def _rows(plan: Plan) -> dict[str, str]:
    cost, price, time, limits = plan.cost, plan.price, plan.time, plan.limits
    return {
        "work": f"{plan.flops / PFLOP:.4g} PFLOP, {plan.tokens} tokens of text",
        "length": plan.length,
        "model": f"{plan.parameters} parameters",
        "to upload": f"{plan.upload_bytes} bytes",
        "disk of a peer": f"{-(-plan.disk_bytes // 2**20)} MiB at most",
        "devices": devices_line(plan.devices),
        "work costs": f"{_tokens(cost.work_at_asks)}; at most {_tokens(cost.work_at_ceiling)}",
        "verification budget": _tokens(cost.verification_budget),
        "both, at most": _tokens(cost.total_at_ceiling),
        "budget": f"{_tokens(cost.budget)}, advised {_tokens(cost.advised_budget)}; comes back: "
        f"{_tokens(cost.comes_back)} or more",
        "price of a PFLOP": f"{_tokens(price.at_asks)}; at most {_tokens(price.ceiling)}",
        "time": f"{_computing(time.seconds)}; {time.seconds_until_deadline} s until the deadline",
        "may be committed": f"{_tokens(limits.burst)} at once, {_tokens(limits.rate)} more an hour",
        "planned": f"{_tokens(limits.first)} of first limits, {_tokens(limits.pay_an_hour)} of pay "
        "an hour",
        "stake of a peer": _stake(plan),
        "sellers": f"{plan.offers.owners} fit of {plan.offers.offers} offers, "
        f"{plan.offers.slots} are wanted, {plan.offers.spares_wanted} spares",
        "checking": _checking(plan.checking),
    }


def devices_line(devices: tuple[str, ...] | None) -> str:
    """Which devices a job takes."""
    if devices is None:
        return "any: checking is off"
    return f"checking is on, so only: {', '.join(devices)}"


def _tokens(amount: int | None) -> str:
    return NOW if amount is None else f"{in_tokens(amount)} tokens"


def _computing(seconds: int | None) -> str:
    return NOW if seconds is None else f"{timedelta(seconds=seconds)} of computing"


def _stake(plan: Plan) -> str:
    hours = plan.stake.hours_of_income
    text = f"{_tokens(plan.stake.each)}; {_tokens(plan.stake.lag_pay)} cover all that a liar costs"
    return text if hours is None else f"{text}, {hours / 1000:.3f} hours of its income here"


def _checking(checking: CheckingPlan | None) -> str:
    if checking is None:
        return "off: work is paid unchecked"
    return "; ".join(checking_phrases(checking))


def _stages(stages: tuple[StageQuoteView, ...]) -> Table:
    columns = ("#stage", "layers", "#MiB", "#offers with it", "#peers", "#GFLOP/s", "#seconds")
    return table(
        "",
        columns,
        (
            (
                number,
                f"{each.first_layer} to {each.end_layer - 1}",
                -(-each.memory_bytes // 2**20),
                each.offers_with_memory,
                "" if each.peers is None else each.peers,
                "" if each.flops_per_second is None else each.flops_per_second // 10**9,
                "" if each.seconds is None else each.seconds,
            )
            for number, each in enumerate(stages)
        ),
    )


def _strategies(plans: tuple[StrategyPlan, ...]) -> Table:
    """The job's own strategy, and the other one with as many tokens and peers."""
    rows: dict[str, list[object]] = {
        "peers": [each.peers for each in plans],
        "MB a round": [f"{each.bytes_a_round / MB:.3f}" for each in plans],
        "MB/s": [_megabytes(each.bytes_a_second) for each in plans],
        "tokens/s": [_number(each.tokens_a_second) for each in plans],
        "by computing": [_number(each.tokens_a_second_computing) for each in plans],
        "by lines": [_number(each.tokens_a_second_lines) for each in plans],
        "drawn": [_percent(each.audit_rate) for each in plans],
        "stake": [in_tokens(each.stake) for each in plans],
    }
    return table(
        "at most, on the offers of now",
        ("", *(f"#{each.strategy}" for each in plans)),
        ((name, *cells) for name, cells in rows.items()),
    )


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / MB:.3f}"


def _percent(rate: int | None) -> str:
    return "" if rate is None else f"{rate / MILLION:.2%}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _obstacles(plan: Plan) -> Iterator[RenderableType]:
    for reason in plan.reasons:
        yield f"why not: {reason}"
    if plan.not_matched:
        yield table(
            "why not matched",
            ("constraint", "#offers that fail it", "would fit"),
            ((each.constraint, each.offers, each.would_fit) for each in plan.not_matched),
        )
    if plan.advice is not None:
        yield f"cheapest remedy: {plan.advice_in_words}"
