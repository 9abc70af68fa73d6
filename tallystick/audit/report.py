"""How a verdict reads: a table for people, the same as data for programs."""

from collections.abc import Iterator
from typing import Any

from contracts.terms.amounts import format_tokens
from verification.audit.audit_file import Verdict
from verification.draws.odds import short, spelled


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people; the last line says it all."""
    escrow = verdict.escrow
    yield f"job                 {verdict.job.hex()}"
    yield f"chain               {verdict.chain_id}, block {verdict.block_number}"
    yield f"block hash          0x{verdict.block_hash.hex()}"
    for name, address in verdict.wiring.addresses.items():
        yield f"  {name:<18}0x{address.hex()}"
    yield f"  {'token':<18}0x{verdict.wiring.token.hex()}"
    for name, number in verdict.checked.items():
        yield f"{name:<26}{number:>10}"
    yield f"steps sealed        {verdict.steps}{' (ended)' if verdict.ended else ''}"
    if later := verdict.checked["seals in no batch"]:
        yield f"  later ones        {later} in no batch: no figure here counts them"
    for account, pay in verdict.accounts.items():
        yield f"account             0x{account.hex()}"
        yield f"  earned            {format_tokens(pay.earned):>20}"
        yield f"  vested            {format_tokens(pay.vested):>20}"
        yield f"  paid              {format_tokens(pay.paid):>20}"
        yield f"  claimed, all jobs {format_tokens(pay.claimed):>20}"
    yield from _odds(verdict)
    if verdict.forfeited:
        yield f"forfeited           {format_tokens(verdict.forfeited):>20}"
    yield f"escrow in           {format_tokens(escrow.deposited):>20}"
    yield f"  paid              {format_tokens(escrow.paid):>20}"
    yield f"  refunded          {format_tokens(escrow.refunded):>20}"
    yield f"  remaining         {format_tokens(escrow.remaining):>20}"
    again = ": nobody did it again" if verdict.work == "unchecked" else ""
    yield f"work                {verdict.work}{again}"
    yield summary(verdict)


def _odds(verdict: Verdict) -> Iterator[str]:
    """How likely it is that falsified peer-steps were never seen, from the draws that were made."""
    if verdict.odds:
        yield "P(undetected) of so many false peer-steps: strangers, largest owner, whole stage"
    for peer, stated in sorted(verdict.odds.items()):
        yield f"peer                0x{peer.hex()}"
        for each in stated:
            chances = (each.strangers, each.friends, each.whole_stage)
            yield f"  {each.falsified:<18}" + "".join(f"{short(chance):>12}" for chance in chances)


def summary(verdict: Verdict) -> str:
    """One line."""
    held = "anchored" if verdict.anchored else "self-consistent but unanchored"
    escrow, later = verdict.escrow, verdict.checked["seals in no batch"]
    tail = f" ({later} later ones in no batch, not counted)" if later else ""
    return (
        f"{held}: {verdict.steps} steps{tail}, escrow in {format_tokens(escrow.deposited)}"
        f" = paid {format_tokens(escrow.paid)} + refunded {format_tokens(escrow.refunded)}"
        f" + remaining {format_tokens(escrow.remaining)}, work {verdict.work}"
    )


def data(verdict: Verdict) -> dict[str, Any]:
    """The verdict for programs: bytes as hexadecimal, money as strings."""
    escrow = verdict.escrow
    return {
        "verdict": "anchored" if verdict.anchored else "unanchored",
        "work": verdict.work,
        "job": verdict.job.hex(),
        "chain_id": verdict.chain_id,
        "block": {
            "number": verdict.block_number,
            "hash": verdict.block_hash.hex(),
            "time": verdict.block_time,
        },
        "contracts": {name: each.hex() for name, each in verdict.wiring.addresses.items()},
        "token": verdict.wiring.token.hex(),
        "steps": verdict.steps,
        "ended": verdict.ended,
        "num_units": verdict.num_units,
        "checked": dict(verdict.checked),
        "forfeited": str(verdict.forfeited),
        "odds": {
            peer.hex(): [spelled(each) for each in stated]
            for peer, stated in sorted(verdict.odds.items())
        },
        "accounts": {
            account.hex(): {
                "earned": str(pay.earned),
                "vested": str(pay.vested),
                "paid": str(pay.paid),
                "claimed": str(pay.claimed),
            }
            for account, pay in verdict.accounts.items()
        },
        "escrow": {
            "deposited": str(escrow.deposited),
            "paid": str(escrow.paid),
            "refunded": str(escrow.refunded),
            "remaining": str(escrow.remaining),
        },
    }
