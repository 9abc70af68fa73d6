"""Dry runs: admission and clearing without effect."""

from dataclasses import replace

import pytest

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.admission import Surroundings
from market.domain.matching import Need, judge
from market.domain.offers import Candidate
from market.domain.quote import need_of, quote, reservable_stake
from market.domain.sizes import job_cost, job_flops
from tests.support.dockets import audit_spec, calibration
from tests.support.history import START
from tests.unit.market.test_admission import spec
from tests.unit.market.test_matching import excluded

NOW = UnixMillis(START * 1000)
DEVICES = ("cpu/a", "cpu/b", "cpu/c")
TABLE = calibration().model_copy(
    update={
        "pairs": tuple(
            calibration().pairs[0].model_copy(update={"classes": (one, other)})
            for one in DEVICES
            for other in DEVICES
            if one <= other
        )
    }
)
AROUND = Surroundings(
    UnixSeconds(START), missing_blobs=(), coordinator_known=True, calibration=TABLE
)


def offer(number: int, price: int) -> Candidate:
    return Candidate(
        offer=Digest(bytes([number]) * 32),
        account=Address(bytes([number]) * 20),
        price=PricePerPflop(price),
        memory_bytes=2**40,
        flops_per_second=10**9 * number,
        available_from=UnixSeconds(0),
        expires_at=UnixSeconds(4_000_000_000),
        heard_at=NOW,
        leased=False,
        free_stake=BaseUnits(10**12),
        device_class="cpu/a+build 7",
    )


def test_quote__enough_offers__says_price_cost_and_time() -> None:
    asked = spec(min_stake=BaseUnits(1))
    offers = [offer(number, 10**10 * number) for number in (1, 2, 3, 4)]

    found = quote(asked, offers, AROUND, NOW)

    assert found.fits and found.reasons == () and found.not_matched == ()
    assert found.price_at_asks == 4 * 10**10
    assert found.cost_at_asks == job_cost(asked, PricePerPflop(4 * 10**10))
    assert found.cost_at_ceiling == job_cost(asked, asked.price_ceiling)
    assert found.seconds == -(-job_flops(asked) // (6 * 10**9))


def test_quote__too_few_offers__says_why_not() -> None:
    found = quote(spec(), [offer(1, 10**13)], AROUND, NOW)

    assert not found.fits and found.price_at_asks is None
    assert len(found.reasons) == 1
    assert found.reasons == (f"the job needs 3 owners at {10**12} or less, 0 fit",)
    assert [each.constraint for each in found.not_matched] == ["owners", "price"]
    assert found.not_matched[0].would_fit == "needs 3 owners, 0 fit"


def test_quote__two_offers_of_one_owner__count_as_one() -> None:
    same = replace(offer(2, 10**10), account=offer(1, 1).account)

    found = quote(spec(min_stake=BaseUnits(1)), [offer(1, 10**10), same], AROUND, NOW)

    assert found.not_matched == (excluded("owners", 2, "needs 3 owners, 1 fit"),)


def test_quote__what_the_poster_still_brings__is_no_reason_against_the_job() -> None:
    offers = [offer(number, 10**10) for number in (1, 2, 3)]
    around = replace(AROUND, missing_blobs=("manifest",), coordinator_known=False)

    found = quote(spec(), offers, around, NOW)

    assert not found.fits and found.price_at_asks is not None
    assert (found.reasons, found.missing) == ((), ("coordinator", "manifest"))


def test_quote__job_that_is_not_admitted__says_so_beside_the_price() -> None:
    offers = [offer(number, 10**10) for number in (1, 2, 3)]

    found = quote(spec(budget=BaseUnits(1)), offers, AROUND, NOW)

    assert not found.fits and found.price_at_asks is not None
    assert "its budget is 0.000001" in found.reasons[0]


def test_need_of__class_held_against_one_other_alone__is_none_that_will_do() -> None:
    pairs = [pair for pair in TABLE.pairs if pair.classes != ("cpu/a", "cpu/c")]
    table = TABLE.model_copy(update={"pairs": tuple(pairs)})

    assert need_of(spec(audit=audit_spec()), NOW, table).devices == frozenset({"cpu/b"})
    assert need_of(spec(), NOW, table).devices is None


@pytest.mark.parametrize(
    ("stakes", "slots", "reservable"),
    [
        ((9, 8, 7, 6, 1, 0), 2, 6),  # what twice as many as the slots hold
        ((9, 8, 3), 2, 3),  # fewer fit: what all of them hold
        ((9, 8, 3), 4, None),
    ],
)
def test_reservable_stake__some_fit__is_what_twice_the_slots_or_all_of_them_hold(
    stakes: tuple[int, ...], slots: int, reservable: int | None
) -> None:
    held = [with_stake(number, stake) for number, stake in enumerate(stakes, 1)]

    assert reservable_stake(judge(need(), held), slots) == reservable


def test_reservable_stake__two_offers_of_one_and_one_too_dear__count_once_and_not() -> None:
    same = replace(with_stake(2, 4), account=with_stake(1, 9).account)
    dear = replace(with_stake(3, 100), price=PricePerPflop(10**30))

    found = reservable_stake(judge(need(), [with_stake(1, 9), same, dear]), 1)

    assert found == 9


def with_stake(number: int, stake: int) -> Candidate:
    return replace(offer(number, 10**10), free_stake=BaseUnits(stake))


def need() -> Need:
    return need_of(spec(min_stake=BaseUnits(50)), NOW, TABLE)
