"""Audit files of a made-up market: what is found, and which forgeries are seen."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from contracts.governance.anchor_chain import fold_anchor_chain
from contracts.terms.digest import keccak
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_ADDRESS, ZERO_DIGEST, Address, JobId
from contracts.terms.messages import Seal
from contracts.terms.typed_data import Domain
from tests.support.audited import (
    LIMIT,
    STAKE,
    TIMES,
    Audited,
    AuditedMarket,
    paid_job,
    pins_of,
    running_job,
)
from tests.support.fake_chain import SHIPS
from tests.support.forging import retold, without_step
from tests.support.history import START, JobMaker, make_members, messages_of
from verification.audit.audit_file import AuditFile, Pins, Verdict, verify
from verification.audit.chain_proof import ChainProof


def check(file: AuditFile) -> Verdict:
    """Verify a file whose block the reader knows."""
    return verify(file.encoded(), SHIPS, pins=pins_of(file))


def refused(file: AuditFile, pins: Pins | None = None) -> str:
    """Where the file is refused."""
    with pytest.raises(AuditMismatch) as caught:
        verify(file.encoded(), SHIPS, pins=pins or pins_of(file))
    return str(caught.value.data["path"])


@cache
def plain() -> Audited:
    return paid_job()


@cache
def verdict() -> Verdict:
    return check(plain().file)


def account_of(job: JobMaker, number: int = 0) -> Address:
    return job.members[number].wallet.account


# ------------------------------------------------------------------------------- what is found


def test_verify__ended_and_paid_job__accounts_for_every_base_unit() -> None:
    escrow, seal = verdict().escrow, plain().job.seals[-1].seal

    assert escrow is not None
    assert escrow.funded == plain().job.spec.budget == escrow.limits + escrow.free
    assert (escrow.limits, escrow.others) == (3 * LIMIT, 0)
    assert escrow.claimed == seal.vested == seal.earned
    assert escrow.closed_at == START + 50
    for each in verdict().accounts.values():
        assert each.channel is not None and each.channel.stake == STAKE
        assert each.channel.claimed == each.vested == each.earned
    assert verdict().disagreements == ()


def test_verify__ended_and_paid_job__counts_what_it_checked() -> None:
    checked = verdict().checked

    assert checked["seals"] == checked["anchored steps"] == checked["draws derived"] == 6
    assert checked["signatures"] == sum(hasattr(each, "signature") for each in plain().job.items)
    assert (checked["drawn"], checked["contracts"], checked["accounts proved"]) == (0, 2, 3)
    assert verdict().wiring.times == TIMES
    assert verdict().work == "unchecked"


def test_verify__nothing_of_the_readers_own__is_self_consistent_but_unanchored() -> None:
    found = verify(plain().data, SHIPS)

    assert not found.anchored
    assert replace(found, anchored=True) == verdict()


def test_verify__no_storage_proved__says_what_the_seals_say_and_is_not_anchored() -> None:
    file = replace(plain().file, block=ChainProof(plain().file.block.header, None))

    found = check(file)

    assert (found.anchored, found.escrow, found.steps) == (False, None, 6)
    assert {each.channel for each in found.accounts.values()} == {None}
    assert [each.vested for each in found.accounts.values()] == [
        each.vested for each in verdict().accounts.values()
    ]


def test_verify__beacon_not_recorded_yet__is_no_mismatch_and_no_draw() -> None:
    market, job = running_job(name="pending")
    batch, entries = market.anchor_chain[-1]
    market.anchor_chain[-1] = (replace(batch, beacon=None), entries)
    anchor_chain = SHIPS["seals"].place("_anchorChains", market.anchorer)
    folded = fold_anchor_chain(each for each, _ in market.anchor_chain)
    market.write(
        "seals", anchor_chain, hash=int.from_bytes(folded, "big"), pendingBlock=batch.block
    )

    checked = check(market.file(job)).checked

    assert (checked["anchored steps"], checked["draws derived"]) == (1, 0)


def test_verify__no_seal_is_anchored__figures_are_those_before_the_first() -> None:
    market, job = AuditedMarket(), JobMaker(name="early", opening_block=1)
    market.open(job)
    job.seal_step()
    job.seal_step()

    found = check(market.file(job))

    assert (found.steps, found.num_items, found.checked["seals in no batch"]) == (0, 0, 2)
    assert {each.earned for each in found.accounts.values()} == {0}


def test_verify__paid_by_a_seal_that_no_batch_holds_yet__is_no_disagreement() -> None:
    market, job = running_job(name="ahead")
    for _ in range(4):
        job.seal_step()
    market.claim_all(job)

    found = check(market.file(job))

    assert found.disagreements == () and found.checked["seals in no batch"] == 4
    paid = found.accounts[account_of(job)]
    assert paid.channel is not None and paid.channel.claimed > paid.vested


# ------------------------------------------------------------ where chain and seals disagree

DISAGREES: dict[str, tuple[str, dict[str, int]]] = {
    "paid more than vests": ("was paid 0.5, but its seals vest 0", {"claimed": 500_000}),
    "shown more than was earned": (
        "was shown to have earned 9, but its seals say 0.222222",
        {"earned": 9_000_000},
    ),
    "paid more than was granted": (
        "was paid or shown 0.2, but granted 0.1",
        {"earned": 200_000, "limit": 100_000},
    ),
    "works without its stake": ("works for a stake of 2, but has bonded 1.5", {"stake": 1_500_000}),
}


@pytest.mark.parametrize("name", DISAGREES)
def test_verify__chain_disagrees_with_the_seals__is_one_line(name: str) -> None:
    market, job = running_job()
    said, written = DISAGREES[name]
    market.write_account(job, account_of(job), **written)

    assert check(market.file(job)).disagreements == (f"0x{account_of(job).hex()}: {said}",)


@pytest.mark.parametrize(
    "written", [{"end": START, "ended": 1}, {"limit": 0, "end": 0}], ids=["quit", "released"]
)
def test_verify__stake_of_an_account_that_works_no_more__is_its_own(
    written: dict[str, int],
) -> None:
    market, job = running_job(name="left")
    market.write_account(job, account_of(job), stake=0, **written)

    assert check(market.file(job)).disagreements == ()


def test_verify__granted_to_somebody_else__is_counted() -> None:
    market, job = running_job(name="friend")
    market.write_job(job, committed=3 * LIMIT + 5)

    found = check(market.file(job))

    assert found.escrow is not None and found.escrow.others == 5


@pytest.mark.parametrize("written", [{"committed": 1}, {"funded": 1}])
def test_verify__sums_of_the_escrow_do_not_fit__is_one_line(written: dict[str, int]) -> None:
    market, job = running_job(name="sums")
    market.write_job(job, **written)

    (found,) = check(market.file(job)).disagreements

    assert found.startswith("budget: limits of 60 in ")


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("pins", "path"),
    [
        (replace(paid_job().pins, block=ZERO_DIGEST), "block/header"),
        (replace(paid_job().pins, escrow=ZERO_ADDRESS), "chain/escrow"),
        (replace(paid_job().pins, seals=ZERO_ADDRESS), "chain/seals"),
    ],
)
def test_verify__not_what_the_reader_brings__is_refused(pins: Pins, path: str) -> None:
    assert refused(plain().file, pins) == path


def test_verify__field_too_many__is_refused() -> None:
    value = decode(plain().data)
    assert isinstance(value, dict)

    with pytest.raises(AuditMismatch) as caught:
        verify(encode(value | {"total": 5}), SHIPS)

    assert caught.value.data["path"] == "file"


def with_items(items: list[Kept]) -> AuditFile:
    return replace(plain().file, items=tuple(items))


def without_the_last_step(job: JobMaker) -> list[Kept]:
    seals = [index for index, item in enumerate(job.items) if messages_of([item], Seal)]
    return job.items[: seals[-2] + 1]


FORGED: dict[str, tuple[str, Callable[[JobMaker], list[Kept]]]] = {
    "step dropped and resealed by the coordinator": ("items", lambda job: without_step(job, 3)),
    "step dropped and all signed again": ("anchor_chain", lambda job: retold(job, steps=5).items),
    "member dropped and all signed again": (
        "anchor_chain",
        lambda job: retold(job, steps=6, members=make_members("ab")).items,
    ),
    "lease dropped": ("items", lambda job: job.items[:2] + job.items[3:]),
    "last step left out": ("anchor_chain", without_the_last_step),
}


@pytest.mark.parametrize("name", FORGED)
def test_verify__history_forged__is_refused_where_it_shows(name: str) -> None:
    place, forge = FORGED[name]

    assert refused(with_items(forge(plain().job))).startswith(f"{place}/")


def test_verify__batch_left_out__is_refused() -> None:
    for index in range(len(plain().file.anchor_chain)):
        anchor_chain = plain().file.anchor_chain[:index] + plain().file.anchor_chain[index + 1 :]

        assert refused(replace(plain().file, anchor_chain=anchor_chain)).startswith("anchor_chain")


def test_verify__told_again_and_no_list_shown__was_paid_what_no_seal_vests() -> None:
    anchor_chain = [
        replace(shown, leaves=(), is_served=False) if shown.leaves else shown
        for shown in plain().file.anchor_chain
    ]
    told = retold(plain().job, steps=5)
    assert refused(with_items(told.items)).startswith("anchor_chain/")

    found = check(replace(with_items(told.items), anchor_chain=tuple(anchor_chain)))

    assert not found.anchored and len(found.disagreements) == 6


def test_verify__list_of_a_batch_not_shown__counts_it_and_is_not_anchored() -> None:
    market, job = running_job()
    file = market.file(job)
    anchor_chain = tuple(replace(shown, leaves=(), is_served=False) for shown in file.anchor_chain)

    found = check(replace(file, anchor_chain=anchor_chain))

    assert (found.anchored, found.checked["batches not shown"]) == (False, 1)
    assert check(file).anchored


def test_verify__tree_of_a_batch_is_not_sorted__neither_holds_a_leaf_nor_lacks_it() -> None:
    """Else its anchorer, who has seen its beacon, would choose between it and the next batch's."""
    market, job = AuditedMarket(), JobMaker(name="behind", opening_block=1)
    market.open(job)
    own = (job.spec.job(), 1, job.seal_step().seal.digest())
    low, high = ((JobId(bytes([byte]) * 32), 1, keccak(b"other")) for byte in (0, 255))
    market.anchor_entries((low, high, own))
    market.anchor_entries((own,))
    file = market.file(job)
    first, again = file.anchor_chain

    for leaves in (first.leaves, first.leaves[:2], first.leaves[2:]):
        anchor_chain = (replace(first, leaves=leaves), again)
        assert refused(replace(file, anchor_chain=anchor_chain)).startswith("anchor_chain/0/leaves")
    hidden = replace(file, anchor_chain=(replace(first, leaves=(), is_served=False), again))
    assert not check(hidden).anchored


def test_verify__batch_after_the_block__is_refused() -> None:
    market, job = running_job(name="later")
    proof = market.proof(job)
    job.seal_step()
    market.anchor()

    assert refused(market.file(job, proof)) == "anchor_chain"


def test_verify__never_opened_on_chain__is_refused() -> None:
    market, job = running_job(name="never")
    market.write_job(job, opened=0)

    assert refused(market.file(job)) == "block/contracts/escrow/storage/jobs"


def test_verify__another_chains_code_or_none__is_refused() -> None:
    code = plain().file.code
    other = bytearray(code["escrow"])
    other[SHIPS["escrow"].immutables["TAIL"][0] + 31] ^= 1

    assert refused(replace(plain().file, code={**code, "escrow": bytes(other)})) == "code/escrow"
    assert refused(replace(plain().file, code={**code, "seals": b""})) == "code/seals"
    elsewhere = Domain(plain().file.domain.chain_id, Address(b"e" * 20))
    assert refused(replace(plain().file, domain=elsewhere)) == "code/escrow"


def test_verify__forger_anchors_in_a_contract_of_his_own__is_refused() -> None:
    """The anchorer could else draw beacons until it likes them, and show a chain of its choice."""
    market = AuditedMarket(seals=Address(b"f" * 20))
    job = JobMaker(name="forged", opening_block=1)
    market.open(job)
    job.seal_step(last=True)
    market.anchor()
    file = market.file(job)
    assert check(file).anchored  # with his contract

    assert refused(file, replace(pins_of(file), seals=plain().pins.seals)) == "chain/seals"
