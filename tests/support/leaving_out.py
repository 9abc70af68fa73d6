"""A coordinator that leaves one member out, for TALLYSTICK_HOOKS=tests.support.leaving_out.

The real process with two of its functions replaced. It lies once `tell_lie` has written into the
job's folder what of whom: the pay, in seals that nobody else can derive, or the work, which it
takes from nobody: those seals are valid.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from contracts.governance import seals
from contracts.governance.claims import PayTree
from contracts.governance.record import JobRecord
from contracts.governance.seals import Derived, UnderSeal
from contracts.terms.amounts import BaseUnits
from contracts.terms.history import Kept
from contracts.terms.ids import Address
from tallystick.gym import hooks
from training.coordinator import journal
from training.rounds.events import Event, WorkClaimed
from training.telling import Tell

Lie: TypeAlias = Literal["pay", "work"]


def tell_lie(folder: Path, lie: Lie, account: Address, step: int) -> None:
    """From this step on the coordinator of a job's folder leaves this out."""
    written = folder / "lie.tmp"
    written.write_text(json.dumps([lie, account.hex(), step]))
    written.rename(folder / "lie")


def without(derived: Derived, account: Address) -> Derived:
    """The seal that does not pay an account, and all that follows from it."""
    pay = tuple(leaf for leaf in derived.pay if leaf.account != account)
    changed = {
        "pay_root": PayTree(pay).root,
        "earned": BaseUnits(sum(leaf.earned for leaf in pay)),
        "vested": BaseUnits(sum(leaf.vested for leaf in pay)),
    }
    seal = derived.seal.model_copy(update=changed)
    record = replace(derived.record, previous=seal.digest())
    return replace(derived, seal=seal, pay=pay, record=record)


def lie_by(file: Path) -> None:
    """Make this process lie as `file` says, once it is there."""
    derive, record = seals.derive_seal, journal.JobJournal.record

    def is_due(lie: Lie, account: Address, step: int) -> bool:
        match json.loads(file.read_text()) if file.exists() else None:
            case [told, who, int(first)]:
                return (told, who) == (lie, account.hex()) and step >= first
        return False

    def derive_falsely(before: JobRecord, under: UnderSeal, *, last: bool) -> Derived:
        found = derive(before, under, last=last)
        due = (leaf.account for leaf in found.pay if is_due("pay", leaf.account, found.seal.step))
        account = next(due, None)
        return found if account is None else without(found, account)

    def record_falsely(own: journal.JobJournal, event: Event, *kept: Kept) -> bool:
        if isinstance(event, WorkClaimed) and event.claim.what == "work":
            claim = event.claim
            if is_due("work", own.record_of_job.leases[claim.peer].account, claim.round):
                return False  # as if it had not come in time
        return record(own, event, *kept)

    replaced: Any = (seals, journal)
    for module in replaced:
        module.derive_seal = derive_falsely
    replaced[1].JobJournal.record = record_falsely


def lying(tell: Tell, failpoints: Path) -> Tell:
    """See `training.hooks.Hooks.tell`; the path says which process this is, and where it works."""
    if failpoints.name == "failpoints-coordinator":
        lie_by(failpoints.with_name("lie"))
    return hooks.HOOKS.tell(tell, failpoints)


HOOKS = replace(hooks.HOOKS, tell=lying)
