"""How the way from work to money reads: seal, anchor, draw, verdict, epoch, transaction."""

from collections.abc import Iterator

from market.bodies.earnings import AnchorView, DrawnView, PaidPartView, WaitsForView
from tallystick.cli.output import moment, short
from verification.draws.odds import read_exact


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


def paid(part: PaidPartView) -> str:
    """What an epoch pays of a line."""
    found = f"epoch {part.epoch} {part.state}, root {short(part.root)}"
    if part.transaction is not None:
        found += f", tx {short(part.transaction)}"
    if part.claimed_by is not None:
        found += f"; claimed by tx {short(part.claimed_by)}"
    return found


def waits(reason: WaitsForView | None) -> Iterator[str]:
    """Why money waits, and until when at the earliest; or why it is lost."""
    if reason is None:
        return
    if reason.sentence.startswith("lost: "):
        yield reason.sentence
        return
    until = [f"seal of step {reason.step}"] if reason.step is not None else []
    until += [f"{moment(reason.at)} UTC"] if reason.at is not None else []
    yield f"waits: {reason.sentence}" + (f" (until {', '.join(until)})" if until else "")
