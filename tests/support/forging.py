"""What a forger would do to a history, with the keys that he has."""

from collections.abc import Sequence

from contracts.governance.record import JobRecord
from contracts.governance.seals import derive_seal
from contracts.terms.errors import TallystickError
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import StepNumber
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from contracts.terms.work import UNDER_A_SEAL
from tests.support.history import JobMaker, Member, under


def without_step(maker: JobMaker, step: int) -> list[Kept]:
    """The history without a step; the coordinator signs new seals, peers sign nothing new.

    A seal that cannot be derived from what the peers did sign keeps its fields but for its number.
    """
    kept, pending = list[Kept](), list[Kept]()
    record = again(maker).record
    for item in maker.items:
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            if item.message.step != step:
                seal = _resealed(record, pending, item.message)
                kept += [*pending, maker.coordinator.sign(seal, maker.domain)]
            pending = []
        elif isinstance(item, Leaves) or (
            isinstance(item, Signed) and isinstance(item.message, UNDER_A_SEAL)
        ):
            pending.append(item)
        else:
            kept.append(item)
    return kept


def _resealed(record: JobRecord, pending: Sequence[Kept], seal: Seal) -> Seal:
    try:
        return derive_seal(record, under(pending), last=seal.last).seal
    except TallystickError:
        return seal.model_copy(update={"step": StepNumber(max(1, seal.step - 1))})


def again(maker: JobMaker, *, members: Sequence[Member] | None = None) -> JobMaker:
    """An equal job before its first step, with other members."""
    return JobMaker(
        name=maker.name,
        domain=maker.domain,
        members=members or maker.members,
        spec_changes=maker.spec_changes,
        anchorer=maker.anchorer,
        opening_block=maker.opening_block,
        poster=maker.poster,
        coordinator=maker.coordinator,
    )


def retold(maker: JobMaker, *, steps: int, members: Sequence[Member] | None = None) -> JobMaker:
    """Another history of the same job, told and signed by all of its parties together."""
    other = again(maker, members=members)
    for number in range(steps):
        other.seal_step(last=number == steps - 1)
    return other
