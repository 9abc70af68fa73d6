"""How a job reads for people: what it is at, what it cost, what checking found."""

import time
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.messages import MILLION
from contracts.terms.moments import UnixSeconds
from market.bodies.advice import in_words
from market.bodies.jobs import JobView, ProgressView
from market.bodies.offers import ChecksView, PeerChecksView, ReceivedView, ReputationView
from market.bodies.slashes import ConvictionsView, ConvictionView
from tallystick.cli.job_plan import devices_line
from tallystick.cli.output import facts
from tallystick.sdk.convictions import state_of
from tallystick.sdk.plan import devices_of
from verification.draws.odds import read_exact, short


def job_table(view: JobView) -> Table:
    """A job for a person."""
    rows = {
        "job": view.job.hex(),
        "outcome": view.outcome + (f": {view.failure}" if view.failure else ""),
        "state": view.state,
        "wanted": view.wanted,
        "strategy": _strategy(view.spec),
        "step": _steps(view.progress),
        "budget": format_tokens(view.funded),
        "committed": format_tokens(view.committed),
        "earned": format_tokens(view.earned),
        "vested": format_tokens(view.vested),
        "claimed": format_tokens(view.claimed),
        "free": format_tokens(view.free),
        "checking": _checking(view.spec),
        "devices": devices_line(devices_of(view.spec.get("rules", {}).get("audit") is not None)),
    }
    for lease in view.leases:
        rows[f"lease {lease.lease.hex()[:8]}"] = (
            f"0x{lease.account.hex()} {lease.state} at {format_tokens(lease.price)} tokens/PFLOP"
        )
    for excluded in view.not_matched:
        rows[f"not matched: {excluded.constraint}"] = (
            f"{excluded.offers} offers; would fit: {excluded.would_fit}"
        )
    for each in view.unpublished:
        rows[f"weights of stage {each.stage} after step {each.step}"] = (
            f"were not published: {each.reason}"
        )
    if view.advice is not None:
        now, budget = UnixSeconds(int(time.time())), BaseUnits(int(view.spec["budget"]))
        rows["to match it now"] = in_words(view.advice, now=now, budget=budget)
    return facts(str(view.spec.get("name", "")), rows)


def _strategy(spec: dict[str, Any]) -> str:
    local = spec.get("batch", {}).get("local")
    if local is None:
        return str(spec.get("strategy", ""))
    return (
        f"{spec['strategy']}, {spec['rules']['gradient_codec']}: a step is a round of "
        f"{local['round_time'] / 1000:g} s, {local['inner_steps']} inner steps an item, "
        f"quorum {local['quorum']}{', overlap' if local['overlap'] else ''}"
    )


def _steps(progress: ProgressView) -> str:
    """Steps whose work is sealed; more seals were of rounds that lacked peers, or settle audits."""
    done = f"{progress.trained} of {progress.steps}"
    return f"{done}, in {progress.step} seals" if progress.step > progress.trained else done


def reputation_words(reputation: ReputationView) -> str:
    """Honesty with the number of audits that it rests on, and liveness."""
    return f"{reputation.in_words()}, liveness {reputation.liveness / MILLION:.2%}"


def _checking(spec: dict[str, Any]) -> str:
    audit = spec.get("rules", {}).get("audit")
    if audit is None:
        return "off: work unchecked"
    return f"on: {audit['floor'] / MILLION:.1%} of the work or more is drawn"


def checks_table(each: PeerChecksView) -> Table:
    """What checking has shown of a peer, for a person."""
    where = "from outside, or left" if each.stage is None else f"in stage {each.stage}"
    rows = {"account": f"0x{each.account.hex()}", "peer-steps": str(each.peer_steps)}
    if (rates := each.rates) is not None:
        shown = (rates.least, rates.mean, rates.greatest)
        rows["q: least, mean, greatest"] = ", ".join(f"{rate / MILLION:.2%}" for rate in shown)
    rows["audits made"] = f"{each.reports}, {each.missed} missed"
    rows["audits received"] = _received(each.received)
    for odds in each.odds:
        chances = (odds.strangers, odds.largest_owner, odds.whole_stage)
        rows[f"P(undetected), {odds.falsified} false"] = ", ".join(
            short(read_exact(chance)) for chance in chances
        )
    rows["stake"] = format_tokens(each.stake)
    if each.stake_hours is not None:
        rows["stake"] += f", {each.stake_hours / 1000:.3f} hours of its income here"
    rows["reputation"] = reputation_words(each.reputation)
    convicted_at = each.convicted_at
    rows["convicted"] = "no" if convicted_at is None else f"in the seal of step {convicted_at}"
    return facts(f"peer {each.peer.hex()[:16]} {where}", rows)


def _received(received: ReceivedView) -> str:
    return (
        f"{received.drawn} drawn: {received.matched} matched, {received.mismatched} mismatched, "
        f"{received.unrepeated} unrepeated, {received.missing} missing, {received.open} open"
    )


def conviction_table(conviction: ConvictionView) -> Table:
    """A conviction for a person."""
    rows: dict[str, str | list[str]] = {
        "account": f"0x{conviction.account.hex()}",
        "subject": conviction.subject.hex(),
        "state": state_of(conviction),
        "stake at risk": format_tokens(conviction.wanted),
    }
    if (slash := conviction.slash) is None:
        rows["who may show it"] = [peer.hex() for peer in conviction.auditors]
    else:
        rows["evidence"] = slash.evidence.hex()
        if slash.amount:
            rows["amount"] = format_tokens(slash.amount)
        for what, digest in (
            ("answer", slash.answer),
            ("announced in", slash.announced_by),
            ("ended in", slash.ended_by),
        ):
            if digest is not None:
                rows[what] = digest.hex() if what == "answer" else f"0x{digest.hex()}"
    return facts(f"convicted by the seal of step {conviction.step}", rows)


def checks_lines(view: ChecksView) -> Iterator[RenderableType]:
    """What checking has shown of all peers."""
    if view.checking == "off":
        yield "checking is off: nobody is drawn, and work is paid unchecked"
    elif not view.peers:
        yield "nobody has joined yet"
    for each in view.peers:
        yield checks_table(each)


def conviction_lines(view: ConvictionsView) -> Iterator[RenderableType]:
    """All convictions of a job."""
    if not view.convictions:
        yield "nobody was convicted so that stake may be slashed"
    for each in view.convictions:
        yield conviction_table(each)
