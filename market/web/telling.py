"""What does a live event say to a person? A kind in words, a sentence, and where to read on. Pure.

Every kind that the API emits has its words here, and no other has: pages listen to these kinds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from contracts.terms.moments import UnixMillis
from market.bodies import events
from market.web.words import millionths, short, tokens, words


@dataclass(frozen=True)
class Said:
    """A sentence, the address that says more, and a state to look like (`words.mark`)."""

    text: str
    href: str | None = None
    like: str = ""


@dataclass(frozen=True)
class Told:
    """An event as a line of a list."""

    number: int
    at: UnixMillis
    kind: str  # in words
    said: Said


Words: TypeAlias = tuple[str, Callable[[Any, str], Said]]
"""The kind in words, and what an event of it says; the text is the hex name of its job."""


def told_of_job(events: Iterable[tuple[int, events.JobEvent]], job: str) -> tuple[Told, ...]:
    """Events of a job, in the given order."""
    return tuple(_told(number, event, job, _JOB) for number, event in events)


def told_of_market(events: Iterable[tuple[int, events.MarketEvent]]) -> tuple[Told, ...]:
    """Events of the market, in the given order."""
    return tuple(_told(number, event, "", _MARKET) for number, event in events)


def _told(number: int, event: Any, job: str, table: Mapping[str, Words]) -> Told:
    kind, say = table[event.kind]
    return Told(number, event.at, kind, say(event, job))


# --------------------------------------------------------------------------------- of one job


def _posted(event: events.PostedEvent, job: str) -> Said:
    size = f"{event.steps} steps, {event.stages} x {event.peers_per_stage} peers"
    money = f"{tokens(event.budget)} tokens at {tokens(event.price_ceiling)} per PFLOP at most"
    return Said(f"{size}, {money}", "#spec-title")


_STATES = {
    "draft": "the job is ordered",
    "funded": "the budget is in escrow; the job waits for machines",
    "matched": "all machines are leased",
    "running": "training begins",
    "finished": "the last step is sealed",
    "closed": "the poster closed the job: what was earned is paid, the rest goes back",
    "failed": "the job failed",
}
"""What a state of a job says to people."""


def _state(event: events.StateEvent, job: str) -> Said:
    words = _STATES[event.state]
    if event.failure:  # of a job that is not over it says why that stands still
        words = f"{words}: {event.failure}" if event.state == "failed" else event.failure
    return Said(words, "#state-title", event.state)


def _unmatched(event: events.UnmatchedEvent, job: str) -> Said:
    found = "; ".join(f"{words(each.constraint)} {each.offers}" for each in event.not_matched)
    return Said(f"no bundle: offers excluded by {found or 'nothing'}", "#why-title", "missing")


def _funded(event: events.FundedEvent, job: str) -> Said:
    return Said(f"{tokens(event.amount)} tokens into escrow", "#money-title", "funded")


def _lease(event: events.LeaseEvent, job: str) -> Said:
    text = f"stage {event.stage}, {_hex(event.account)} at {tokens(event.price)}: {event.state}"
    return Said(text, _provider(event.account), event.state)


_NOTICES = {
    "join": ("joins", "active"),
    "leave": ("leaves", "ended"),
    "missed_report": ("owes a report", "missing"),
    "missing_data": ("did not have its data", "missing"),
    "suspension": ("is suspended", "failed"),
}


def _peer(event: events.PeerEvent, job: str) -> Said:
    what, like = _NOTICES[event.what]
    href = None if event.account is None else _provider(event.account)
    return Said(f"stage {event.stage}, {_hex(event.peer)} {what}, step {event.step}", href, like)


def _sealed(event: events.SealedEvent, job: str) -> Said:
    loss = "" if event.loss_millionths is None else f", loss {millionths(event.loss_millionths)}"
    text = f"step {event.step} by {event.peers} of {event.members} peers{loss}"
    earned = f"; {tokens(event.earned)} of {tokens(event.budget)} tokens earned"
    return Said(text + earned + (" (the last one)" if event.last else ""), _step(job, event.step))


def _report(event: events.ReportedEvent, job: str) -> Said:
    loss = f"step {event.step}, loss {millionths(event.loss_millionths)}"
    return Said(f"{loss}, {event.tokens_per_second:,} tokens/s", "#curve-title")


def _audited(event: events.AuditedEvent, job: str) -> Said:
    text = f"{_hex(event.auditor)} repeated {_hex(event.subject)}"
    where = f" of step {event.step}, stage {event.stage}: {event.verdict}"
    return Said(text + where, _step(job, event.step), event.verdict)


_RULINGS = {
    "drawn": "was drawn to be audited",
    "settled": "is what a stranger found too",
    "unrepeated": "is closed: nobody repeated it",
    "missed": "did not report in time",
    "accused": "was accused: another auditor looks",
    "contradicted": "was contradicted as an auditor",
    "convicted": "was convicted",
    "missing": "did not have its data",
    "slashable": "may lose its stake: the conviction is confirmed",
    "unconfirmed": "was not confirmed to be wrong",
}


def _ruled(event: events.RuledEvent, job: str) -> Said:
    by = f" ({len(event.by)} heard)" if event.by else ""
    text = f"step {event.step}: {_hex(event.peer)} {_RULINGS[event.what]}{by}"
    return Said(text, _step(job, event.step), event.what)


def _anchored(event: events.AnchoredEvent, job: str) -> Said:
    text = f"seals of {_steps(event.steps)} in block {event.block}"
    return Said(text, _step(job, event.steps[0]) if event.steps else None, "final")


def _beacon(event: events.BeaconEvent, job: str) -> Said:
    text = f"{_hex(event.beacon)} draws from {_steps(event.steps)}"
    return Said(text, _step(job, event.steps[0]) if event.steps else None)


def _checkpoint(event: events.CheckpointEvent, job: str) -> Said:
    what = "is here whole" if event.is_here else "is claimed"
    text = f"stage {event.stage} after step {event.step} {what}, says {_hex(event.peer)}"
    return Said(text, "#checkpoints-title")


def _unpublished(event: events.UnpublishedEvent, job: str) -> Said:
    text = (
        f"weights of stage {event.stage} after step {event.step} were not published: {event.reason}"
    )
    return Said(text, "#checkpoints-title", "failed")


def _limit(event: events.LimitEvent, job: str) -> Said:
    text = f"{_hex(event.account)} can be paid {tokens(event.limit)} tokens in total"
    return Said(text, "#limits-title")


def _bond(event: events.BondEvent, job: str) -> Said:
    text = f"{_hex(event.account)} has {tokens(event.stake)} tokens at stake"
    return Said(text, "#limits-title", "bonded")


def _quit(event: events.QuitEvent, job: str) -> Said:
    return Said(f"the work of {_hex(event.account)} in this job ended", "#limits-title", "ended")


def _claimed(event: events.ClaimedEvent, job: str) -> Said:
    text = f"{_hex(event.account)} claimed {tokens(event.amount)} tokens"
    return Said(text, _provider(event.account), "claimed")


def _reclaimed(event: events.ReclaimedEvent, job: str) -> Said:
    return Said(f"{tokens(event.amount)} tokens back to the poster", "#money-title")


def _slash(event: events.SlashEvent, job: str) -> Said:
    text = f"{tokens(event.amount)} tokens of the stake of {_hex(event.account)}: {event.state}"
    return Said(text, _provider(event.account), "convicted")


def _end(event: events.EndEvent, job: str) -> Said:
    return Said("nothing more happens to this job")


_JOB: Mapping[str, Words] = {
    "posted": ("order", _posted),
    "state": ("state", _state),
    "unmatched": ("not matched", _unmatched),
    "funded": ("funding", _funded),
    "lease": ("lease", _lease),
    "peer": ("peer", _peer),
    "sealed": ("seal", _sealed),
    "report": ("report", _report),
    "audited": ("audit", _audited),
    "ruled": ("ruling", _ruled),
    "anchored": ("anchor", _anchored),
    "beacon": ("beacon", _beacon),
    "checkpoint": ("checkpoint", _checkpoint),
    "unpublished": ("checkpoint", _unpublished),
    "limit": ("limit", _limit),
    "bond": ("bond", _bond),
    "quit": ("end of work", _quit),
    "claimed": ("claim", _claimed),
    "reclaimed": ("reclaim", _reclaimed),
    "slash": ("slash", _slash),
    "end": ("end", _end),
}
JOB_EVENTS = tuple(_JOB)
"""Types of a job's events after which its page is refreshed."""
VERDICTS = "audited", "ruled"
"""Those of what auditors found, and what was decided."""


# ----------------------------------------------------------------------------- of the market


def _job(event: events.JobChangedEvent, _: str) -> Said:
    text = f"{event.name}: {_STATES[event.state]}"
    return Said(text, f"/jobs/{event.job.hex()}", event.state)


def _round(event: events.RoundEvent, _: str) -> Said:
    job, of = f"/jobs/{event.job.hex()}", f"for job {_hex(event.job)}, {event.offers} offers stood"
    if event.price is None:
        return Said(f"bought nothing {of}", job, "missing")
    return Said(f"bought {event.bought} at {tokens(event.price)} per PFLOP {of}", job, "matched")


def _offer(event: events.OfferEvent, _: str) -> Said:
    what = f"{event.device_class} at {tokens(event.price)} per PFLOP"
    by = f" by {_hex(event.account)}"
    text = f"{what} was taken back{by}" if event.withdrawn else f"{what} is offered{by}"
    return Said(text, _provider(event.account), "withdrawn" if event.withdrawn else "open")


_MARKET: Mapping[str, Words] = {
    "job": ("job", _job),
    "round": ("clearing round", _round),
    "offer": ("offer", _offer),
}
MARKET_EVENTS = tuple(_MARKET)
"""Types of the market's events after which its page is refreshed."""


def _hex(name: bytes) -> str:
    return short(name.hex())


def _steps(steps: tuple[int, ...]) -> str:
    if len(steps) < 2:
        return f"step {steps[0]}" if steps else "no step"
    return f"steps {min(steps)} to {max(steps)}"


def _provider(account: bytes) -> str:
    return f"/providers/{account.hex()}"


def _step(job: str, step: int) -> str:
    return f"/audit/{job}/steps/{step}"
