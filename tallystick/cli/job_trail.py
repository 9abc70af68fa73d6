"""Where a job's work and money are: `job spend`, `peers`, `steps` and `trace`.

The way from work to money reads alike everywhere: seal, anchor, draw, verdict, claim.
"""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from contracts.terms.amounts import format_tokens
from contracts.terms.ids import MAX_STEPS, PeerId, StepNumber
from contracts.terms.work import MAX_SEQ
from market.bodies.earnings import (
    AccountSpendView,
    AnchorView,
    ClaimPartView,
    DrawnView,
    OutlookView,
    PeersView,
    SpendView,
    WaitsForView,
)
from market.bodies.routes import GET_PEERS, GET_SPEND, GET_STEPS, GET_WORK
from market.bodies.tracing import AuditsView, StepsView, WorkTraceView
from tallystick.cli.options import Job, Market, ask_of_job, parse_digest
from tallystick.cli.output import facts, moment, short, shows
from tallystick.cli.shown import lines_of, rows_table
from verification.draws.odds import read_exact

# ---------------------------------------------------------------------- the way from work to money


def anchored(anchor: AnchorView | None) -> str:
    """Where a seal is on chain."""
    if anchor is None:
        return "not on chain yet"
    sent = "" if anchor.transaction is None else f", tx {short(anchor.transaction)}"
    return f"root {short(anchor.batch)} in block {anchor.block}{sent}"


def drawn(draw: DrawnView | None) -> str:
    """Whether something was drawn to be audited, and the verdict."""
    if draw is None:
        return "never drawn"
    odds = f"odds {float(read_exact(draw.rate)):.2%}"
    if draw.drawn is None:
        return f"draw open, {odds}"
    if not draw.drawn:
        return f"not drawn, {odds}"
    by = ", ".join(short(each) for each in draw.auditors)
    return f"drawn, {odds}: {draw.outcome or 'open'}" + (f" by {by}" if by else "")


def claimed(part: ClaimPartView) -> str:
    """What a claim paid of a line."""
    paid = format_tokens(part.amount)
    return f"{paid} tokens in block {part.block}, tx {short(part.transaction)}"


def waits(reason: WaitsForView | None) -> Iterator[str]:
    """Why money waits and what ends that, or why it is lost."""
    if reason is None:
        return
    if reason.sentence.startswith("lost: "):
        yield reason.sentence
        return
    until = "" if reason.step is None else f" (until the seal of step {reason.step})"
    yield f"waits: {reason.sentence}{until}"


# ------------------------------------------------------------------------------------------- verbs

After = Annotated[int, typer.Option("--after", help="Steps beyond this one.", min=0, max=MAX_STEPS)]


# ----------------------------------------------------------------------------------------- spend


def _spend_lines(view: SpendView) -> Iterator[RenderableType]:
    yield facts(f"job {short(view.job)}, {view.state}", dict(_spend_rows(view)))
    yield rows_table("by account", AccountSpendView, view.accounts)


def _spend_rows(view: SpendView) -> Iterator[tuple[str, str]]:
    tokens = format_tokens
    yield "budget", f"{tokens(view.budget)}; {tokens(view.funded)} in escrow, less what came back"
    yield "committed", f"{tokens(view.committed)} to limits; {tokens(view.free)} are free"
    yield "earned", tokens(view.earned)
    yield "vested, claimed", f"{tokens(view.vested)}, {tokens(view.claimed)}"
    yield "frozen, forfeited", f"{tokens(view.frozen)}, {tokens(view.forfeited)}"
    if (audits := view.audits) is not None:
        spent = f"{tokens(audits.spent)} of {tokens(audits.budget)}"
        yield "audits", f"{spent}, {tokens(audits.reserved)} may follow"
    yield "step", f"{view.trained} of {view.num_steps}, in {view.step} seals"
    if (pace := view.pace) is not None:
        hourly = tokens(pace.spent_an_hour)
        yield "pace", f"{pace.millis_a_step} ms and {tokens(pace.spent_a_step)} a step; {hourly}/h"
    if (outlook := view.outlook) is not None:
        yield "outlook", _outlook(outlook)


def _outlook(outlook: OutlookView) -> str:
    found = f"ends {moment(outlook.ends_at)} UTC with {format_tokens(outlook.spent_then)} spent"
    if not outlook.lasts:
        found += f"; the budget ends at step {outlook.spent_up_at_step}"
    return found


@shows(SpendView, lines=_spend_lines)
def spend_command(job: Job, market: Market = None, after: After = 0) -> SpendView:
    """Show what a job has spent, on whom, how fast, and whether the budget lasts.

    Example: tallystick job spend JOB -o csv
    """

    return ask_of_job(
        market, job, lambda client, wanted: client.whole(GET_SPEND, job=wanted, after=after)
    )


# ----------------------------------------------------------------------------------------- peers


@shows(PeersView, lines=lines_of)
def peers_command(job: Job, market: Market = None) -> PeersView:
    """Show a job's peers by stage: state, part of the work, speed, pay, reputation.

    Example: tallystick job peers JOB
    """

    return ask_of_job(market, job, lambda client, wanted: client.whole(GET_PEERS, job=wanted))


# ----------------------------------------------------------------------------------------- steps


@shows(StepsView, lines=lines_of)
def steps_command(
    job: Job,
    market: Market = None,
    after: After = 0,
    limit: Annotated[
        int, typer.Option("--limit", help="So many steps at most.", min=1, max=MAX_STEPS)
    ] = 1000,
) -> StepsView:
    """Show sealed steps: seal, anchor, beacon, what was drawn and found.

    Example: tallystick job steps JOB --after 100
    """

    return ask_of_job(
        market,
        job,
        lambda client, wanted: client.whole(GET_STEPS, most=limit, job=wanted, after=after),
    )


# ----------------------------------------------------------------------------------------- trace


def _trace_lines(view: WorkTraceView) -> Iterator[RenderableType]:
    yield facts(
        f"step {view.step}, stage {view.stage} by {view.peer.hex()}", dict(_trace_rows(view))
    )


def _trace_rows(view: WorkTraceView) -> Iterator[tuple[str, str]]:
    yield "account", f"0x{view.account.hex()}"
    yield "amount", f"{format_tokens(view.amount)} tokens, {view.state}"
    yield "WorkClaim", view.work_claim.claim.hex()
    yield f"{view.work_claim.units} units", view.work_claim.leaves.hex()
    yield f"seal {view.sealed.step}", view.sealed.seal.hex()
    yield "on chain", anchored(None if view.anchored is None else view.anchored.anchor)
    yield from _audit_rows(view.audits)
    if (slip := view.pay) is not None:
        yield f"vested in {slip.step}", slip.seal.hex()
    for number, each in enumerate(view.claims, start=1):
        yield f"claim {number}", claimed(each)


def _audit_rows(audits: AuditsView | None) -> Iterator[tuple[str, str]]:
    if audits is None:
        yield "draw", "never drawn"
        return
    draw = audits.draw
    heard = tuple(report.auditor for report in audits.reports)
    said = DrawnView(rate=draw.rate, drawn=draw.drawn, outcome=draw.outcome, auditors=heard)
    yield "draw", drawn(said)
    for number, report in enumerate(audits.reports, start=1):
        by = f"{report.verdict} by {short(report.auditor)}"
        yield f"report {number}", f"{by}, in the seal of step {report.sealed}"
    for number, ruling in enumerate(audits.rulings, start=1):
        yield f"ruling {number}", f"{ruling.what} in step {ruling.step}: {short(ruling.peer)}"


@shows(WorkTraceView, lines=_trace_lines, rows="claims")
def trace_command(
    job: Job,
    step: Annotated[int, typer.Argument(help="Step of the work.", min=1, max=MAX_STEPS)],
    peer: Annotated[str, typer.Argument(help="Who did it (64 digits), as `job peers -o json`.")],
    market: Market = None,
    seq: Annotated[
        int, typer.Option("--seq", help="Which claim of the step.", min=0, max=MAX_SEQ)
    ] = 0,
) -> WorkTraceView:
    """Trace a peer-step from its WorkClaim to the money; as JSON with every Merkle path.

    Example: tallystick job trace JOB 3 PEER -o json
    """
    worker = PeerId(parse_digest(peer, "peer"))
    return ask_of_job(
        market,
        job,
        lambda client, wanted: client.call(
            GET_WORK, job=wanted, step=StepNumber(step), peer=worker, seq=seq
        ),
    )
