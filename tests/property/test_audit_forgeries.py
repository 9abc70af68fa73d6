"""Audit files of a made-up market: what is found, and which forgeries are seen."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from contracts.governance.lane import fold_lane
from contracts.governance.settlement import ClosedStatement, due_shares
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch
from contracts.terms.history import Kept
from contracts.terms.ids import Address, Digest, JobId, StepNumber
from tests.support.audited import AuditedMarket, Settled, settled
from tests.support.fake_chain import SHIPS
from tests.support.forging import moved, retold, without_step
from tests.support.history import DOMAIN, START, JobMaker, make_members
from verification.audit.audit_file import AuditFile, Verdict, verify


def check(file: AuditFile) -> Verdict:
    """Verify a file whose newest block the reader knows."""
    anchor = file.snapshots[-1].header.hash
    return verify(file.encoded(), SHIPS, anchor=anchor, settlement=DOMAIN.settlement)


def refused(file: AuditFile) -> str:
    """Where the file is refused."""
    with pytest.raises(AuditMismatch) as caught:
        check(file)
    return str(caught.value.data["path"])


@cache
def plain() -> Settled:
    return settled()


@cache
def verdict() -> Verdict:
    return check(plain().file)


def accounts(job: JobMaker) -> list[Address]:
    return [member.wallet.account for member in job.members]


# ------------------------------------------------------------------------------- what is found


def test_verify__ended_and_settled_job__accounts_for_every_base_unit() -> None:
    escrow = verdict().escrow

    assert escrow.deposited == plain().job.spec.budget
    assert escrow.deposited == escrow.paid + escrow.refunded + escrow.remaining
    assert escrow.paid == sum(each.paid for each in verdict().accounts.values())
    assert escrow.remaining == 0


def test_verify__ended_and_settled_job__counts_what_it_checked() -> None:
    checked = verdict().checked

    assert checked["seals"] == checked["anchored steps"] == checked["draws derived"] == 6
    assert checked["signatures"] == sum(hasattr(each, "signature") for each in plain().job.items)
    assert checked["drawn"] == 0
    assert checked["snapshots"] == 2
    assert verdict().work == "unchecked"


def test_verify__no_anchor__is_self_consistent_but_unanchored() -> None:
    found = verify(plain().data, SHIPS)

    assert not found.anchored
    assert replace(found, anchored=True) == verdict()


def test_verify__anchor_without_contract__is_unanchored() -> None:
    assert not verify(plain().data, SHIPS, anchor=plain().anchor).anchored
    assert not verify(plain().data, SHIPS, settlement=DOMAIN.settlement).anchored


@cache
def running() -> tuple[AuditedMarket, JobMaker]:
    """A job of one step, anchored and not settled."""
    market, job = AuditedMarket(), JobMaker(name="running", opening_block=1)
    market.open(job)
    job.seal_step()
    market.anchor()
    market.snapshot(job)
    return market, job


def test_verify__job_that_runs__has_everything_remaining() -> None:
    market, job = running()

    escrow = check(market.file(job)).escrow

    assert (escrow.paid, escrow.refunded, escrow.remaining) == (0, 0, job.spec.budget)


def closed_market(*, cap: int, due_paid: bool) -> tuple[AuditedMarket, JobMaker]:
    """A job that fell silent after two steps and was closed by its second seal."""
    market, job = AuditedMarket(), JobMaker(name="silent", opening_block=1)
    market.open(job)
    job.seal_step()
    job.seal_step()
    market.anchor()
    market.close(job)
    statement = closed_by(job, cap=cap)
    market.settle([statement])
    market.snapshot(job)
    if due_paid:
        market.settle([statement])
        market.snapshot(job)
    return market, job


def closed_by(job: JobMaker, number: int = -1, *, cap: int = 10**9) -> ClosedStatement:
    """What a close by a seal of the job, which is not its last, leaves to be paid."""
    seal = job.seals[number]
    due = BaseUnits(sum(due_shares(seal.pay, last=False).values()))
    step = StepNumber(seal.seal.step)
    name = job.spec.job()
    return ClosedStatement(
        name, seal.seal.digest(), step, seal.pay, BaseUnits(cap), due, last=False
    )


@pytest.mark.parametrize("due_paid", [False, True])
def test_verify__closed_job_paid_in_pieces__follows_them(due_paid: bool) -> None:
    market, job = closed_market(cap=1_000_001, due_paid=due_paid)

    found = check(market.file(job))

    earned = job.seals[-1].seal.earned
    assert found.escrow.paid == (earned if due_paid else 1_000_001)
    assert found.escrow.refunded == job.spec.budget - earned


@pytest.mark.parametrize(("paid_by", "is_fine"), [(0, True), (1, False)])
def test_verify__closed_by_the_older_of_two_seals__is_paid_by_that_one(
    paid_by: int, is_fine: bool
) -> None:
    market, job = AuditedMarket(), JobMaker(name="older", opening_block=1)
    market.open(job)
    job.seal_step()
    job.seal_step()
    market.anchor()
    market.close(job, shown=0)
    market.settle([closed_by(job, paid_by)])
    market.snapshot(job)

    if is_fine:
        assert check(market.file(job)).escrow.paid == job.seals[0].seal.earned > 0
    else:
        assert refused(market.file(job)).startswith("snapshots/0")


def test_verify__closed_and_paid_by_a_seal_that_no_batch_holds__is_refused() -> None:
    market, job = AuditedMarket(), JobMaker(name="hasty", opening_block=1)
    market.open(job)
    job.seal_step()
    market.anchor()
    job.seal_step()
    market.close(job)
    market.settle([closed_by(job)])
    market.snapshot(job)

    assert refused(market.file(job)) == "snapshots/0/settlement"


# ------------------------------------------------------------------------------- what is refused


def test_verify__other_block_hash__is_refused() -> None:
    with pytest.raises(AuditMismatch) as caught:
        verify(plain().data, SHIPS, anchor=Digest(bytes(32)), settlement=DOMAIN.settlement)

    assert caught.value.data["path"] == "snapshots/1/header"


def test_verify__other_contract__is_refused() -> None:
    with pytest.raises(AuditMismatch) as caught:
        verify(plain().data, SHIPS, anchor=plain().anchor, settlement=Address(bytes(20)))

    assert caught.value.data["path"] == "chain/settlement"


def test_verify__field_too_many__is_refused() -> None:
    value = decode(plain().data)
    assert isinstance(value, dict)

    with pytest.raises(AuditMismatch) as caught:
        verify(encode(value | {"total": 5}), SHIPS)

    assert caught.value.data["path"] == "file"


def with_items(items: list[Kept]) -> AuditFile:
    return replace(plain().file, items=tuple(items))


def test_verify__payout_moved_in_the_file__is_refused() -> None:
    newest, job = plain().file.snapshots[-1], plain().job
    giver, taker, _ = accounts(job)
    forged = moved(newest.settlement, job.spec.job(), giver, taker, 1)
    snapshots = (plain().file.snapshots[0], replace(newest, settlement=forged))

    assert refused(replace(plain().file, snapshots=snapshots)) == "snapshots/1/settlement"


def test_verify__payout_moved_on_chain__is_refused() -> None:
    market, job = AuditedMarket(), JobMaker(name="robbed", opening_block=1)
    market.open(job)
    for _ in range(3):
        job.seal_step()
    market.anchor()
    honest = market.settle()
    giver, taker, _ = accounts(job)
    market.settlements.pop()
    market.book(moved(honest, job.spec.job(), giver, taker, 1))
    market.snapshot(job)

    assert refused(market.file(job)) == "snapshots/0/settlement"


def test_verify__step_dropped_and_resealed_by_the_coordinator__is_refused() -> None:
    assert refused(with_items(without_step(plain().job, 3))).startswith("items/")


def test_verify__step_dropped_and_all_signed_again_by_everybody__is_refused() -> None:
    told = retold(plain().job, steps=5)

    assert refused(with_items(told.items)).startswith("lane/")


def test_verify__member_dropped_and_all_signed_again_by_everybody__is_refused() -> None:
    told = retold(plain().job, steps=6, members=make_members("ab"))

    assert refused(with_items(told.items)).startswith("lane/")


def test_verify__lease_dropped__is_refused() -> None:
    items = list(plain().job.items)
    del items[2]

    assert refused(with_items(items)).startswith("items/")


def test_verify__last_steps_left_out__is_refused() -> None:
    items = plain().job.items
    seals = [index for index, item in enumerate(items) if _is_seal(item)]

    assert refused(with_items(items[: seals[-2] + 1])).startswith("lane/")


def _is_seal(item: Kept) -> bool:
    return getattr(getattr(item, "message", None), "kind", "") == "seal.v1"


def test_verify__batch_left_out__is_refused() -> None:
    for index in range(len(plain().file.lane)):
        lane = plain().file.lane[:index] + plain().file.lane[index + 1 :]

        assert refused(replace(plain().file, lane=lane)).startswith("lane")


def test_verify__told_again_and_no_list_shown__pay_is_by_no_anchored_seal() -> None:
    lane = [
        replace(shown, leaves=(), is_served=False) if shown.leaves else shown
        for shown in plain().file.lane
    ]
    told = retold(plain().job, steps=5)
    assert refused(with_items(told.items)).startswith("lane/")

    hidden = replace(with_items(told.items), lane=tuple(lane))

    assert refused(hidden) == "snapshots/0/settlement"


def test_verify__list_of_a_batch_without_pay_not_shown__counts_it_and_is_not_anchored() -> None:
    market, job = running()
    file = market.file(job)
    lane = tuple(replace(shown, leaves=(), is_served=False) for shown in file.lane)

    found = check(replace(file, lane=lane))

    assert (found.anchored, found.checked["batches not shown"]) == (False, 1)
    assert check(file).anchored


def test_verify__tree_of_a_batch_is_not_sorted__neither_holds_a_leaf_nor_lacks_it() -> None:
    """Else its anchorer, who has seen its coin, would choose between it and the next batch's."""
    market, job = AuditedMarket(), JobMaker(name="behind", opening_block=1)
    market.open(job)
    own = (job.spec.job(), 1, job.seal_step().seal.digest())
    low, high = ((JobId(bytes([byte]) * 32), 1, keccak(b"other")) for byte in (0, 255))
    market.anchor_entries((low, high, own))
    market.anchor_entries((own,))
    market.snapshot(job)
    file = market.file(job)
    first, again = file.lane

    for leaves in (first.leaves, first.leaves[:2], first.leaves[2:]):
        lane = (replace(first, leaves=leaves), again)
        assert refused(replace(file, lane=lane)).startswith("lane/0/leaves")
    hidden = replace(file, lane=(replace(first, leaves=(), is_served=False), again))
    assert not check(hidden).anchored


def test_verify__no_snapshot__is_refused() -> None:
    with pytest.raises(AuditMismatch):
        verify(replace(plain().file, snapshots=()).encoded(), SHIPS)


def test_verify__newest_snapshot_left_out__is_not_the_readers_block() -> None:
    file = replace(plain().file, snapshots=plain().file.snapshots[:1])
    with pytest.raises(AuditMismatch) as caught:
        verify(file.encoded(), SHIPS, anchor=plain().anchor, settlement=DOMAIN.settlement)

    assert caught.value.data["path"] == "snapshots/0/header"


def test_verify__forger_deploys_the_same_contracts_again__is_refused() -> None:
    mine = plain().file.snapshots[-1].header.hash
    theirs = AuditedMarket(name="forger")
    job = JobMaker(name="forged", opening_block=1)
    theirs.open(job)
    job.seal_step(last=True)
    theirs.anchor()
    theirs.settle()
    theirs.snapshot(job)
    file = theirs.file(job)
    assert check(file).anchored  # on his own chain

    with pytest.raises(AuditMismatch):
        verify(file.encoded(), SHIPS, anchor=mine, settlement=DOMAIN.settlement)


Change = Callable[[AuditedMarket, JobMaker], None]


def _write(place: str, **values: int) -> Change:
    def change(market: AuditedMarket, job: JobMaker) -> None:
        market.write("escrow", SHIPS["escrow"].place(place, job.spec.job()), **values)

    return change


def _total(**values: int) -> Change:
    return lambda market, _: market.write(
        "settlement", SHIPS["settlement"].place("_totals"), **values
    )


def _claimed(market: AuditedMarket, job: JobMaker) -> None:
    place = SHIPS["settlement"].place("claimed", accounts(job)[0])
    market.write("settlement", place, value=10**9)


ON_CHAIN: dict[str, tuple[str, Change]] = {
    "never opened": ("contracts/escrow/storage", _write("_jobs", deposited=0, debited=0)),
    "debited more": ("settlement", _write("_jobs", debited=9)),
    "less than the budget": ("contracts/escrow/storage", _write("_jobs", deposited=99_999_999)),
    "paid more than funded": ("settlement", _total(paid=10**9)),
    "claimed too much": ("settlement", _claimed),
    "closed by no known seal": ("items", _write("_jobs", closing=1)),
}


@pytest.mark.parametrize("name", ON_CHAIN)
def test_verify__chain_contradicts_the_history__is_refused(name: str) -> None:
    market, job = AuditedMarket(), JobMaker(name=f"wrong {name}", opening_block=1)
    market.open(job)
    job.seal_step()
    market.anchor()
    path, change = ON_CHAIN[name]
    if name.startswith("closed"):
        _write("_closing", seals=7)(market, job)
    change(market, job)
    market.snapshot(job)

    assert refused(market.file(job)) in (path, f"snapshots/0/{path}")


def test_verify__refund_too_large__is_refused() -> None:
    market, job = closed_market(cap=10**9, due_paid=False)
    deposited = job.seals[-1].seal.earned - 1
    _write("_jobs", deposited=deposited)(market, job)
    market.snapshots.clear()
    market.snapshot(job)

    assert refused(market.file(job)).startswith("snapshots/0")


def test_verify__refund_before_it_was_due__is_refused() -> None:
    market, job = closed_market(cap=10**9, due_paid=False)
    market.snapshots.clear()
    market.snapshot(job, timestamp=START + 59)

    assert refused(market.file(job)) == "snapshots/0/contracts/escrow/storage"


def test_verify__pay_by_a_seal_that_no_batch_holds__is_refused() -> None:
    market, job = AuditedMarket(), JobMaker(name="unanchored", opening_block=1)
    market.open(job)
    job.seal_step()
    market.anchor()
    for _ in range(3):
        job.seal_step()
    market.settle()
    market.snapshot(job)

    assert refused(market.file(job)) == "snapshots/0/settlement"


def test_verify__coin_not_recorded_yet__is_no_mismatch_and_no_draw() -> None:
    market, job = AuditedMarket(), JobMaker(name="pending", opening_block=1)
    market.open(job)
    job.seal_step()
    market.anchor()
    batch, entries = market.lane[-1]
    market.lane[-1] = (replace(batch, coin=None), entries)
    lane = SHIPS["seals"].place("_lanes", market.anchorer)
    folded = fold_lane(each for each, _ in market.lane)
    market.write("seals", lane, hash=int.from_bytes(folded, "big"), pendingBlock=batch.block)
    market.snapshot(job)

    checked = check(market.file(job)).checked

    assert (checked["anchored steps"], checked["draws derived"]) == (1, 0)
