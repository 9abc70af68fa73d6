"""`job submit` refused, or killed between any two of its steps: paid once, and nothing lost."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address
from contracts.terms.typed_data import WalletDomain
from tallystick import chains
from tallystick.sdk.orders import Order
from tallystick.sdk.plan import Plan
from tests.integration.bad_input.posting import (
    JOB,
    Denying,
    Killed,
    Moving,
    Poster,
    Renaming,
    poster_at,
)
from tests.support.databases import DATABASES
from tests.support.history import START

BUDGET = JOB["budget"] * 10**6
FAUCET = 10**9  # base units that the market gives at once

SOON = datetime.fromtimestamp(START + 100, UTC)


def steps_of(asked: list[str]) -> list[int]:
    """The first and the last of each run of equal requests: where two steps meet."""
    return [
        number
        for number, each in enumerate(asked)
        if asked[number - 1 : number] != [each] or asked[number + 1 : number + 2] != [each]
    ]


@pytest.mark.parametrize("is_answer_lost", [False, True], ids=["not sent", "answer lost"])
async def test_submit__killed_at_any_step__second_call_posts_the_same_job_and_pays_once(
    is_answer_lost: bool, tmp_path: Path
) -> None:
    whole = await poster_at(tmp_path / "whole")
    undisturbed = whole.wire()
    await whole.post(whole.job(), undisturbed)
    steps = steps_of(undisturbed.asked)
    assert len(steps) >= 10 and {"POST coordinators", "POST faucet", "POST jobs"} <= {
        undisturbed.asked[number] for number in steps
    }

    for number in steps:
        async with DATABASES.for_a_while():
            poster = await poster_at(tmp_path / f"cut {number}")
            with pytest.raises(Killed):
                await poster.post(poster.job(), poster.wire(number, is_answer_lost=is_answer_lost))

            submitted = await poster.post(poster.job())

            await poster.world.tick()
            (row,) = await poster.jobs()
            assert (row.job, row.state) == (submitted.job, "funded"), undisturbed.asked[number]
            assert (await poster.world.chain.budget(row.job)).funded == BUDGET
            assert poster.tokens == FAUCET - BUDGET


async def test_submit__posted_before__same_file_is_the_same_job_whatever_changed_since(
    tmp_path: Path,
) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)
    first = await poster.post(poster.job())
    poster.world.wait(20)  # another deadline, other offers, another permit
    await poster.world.offer("ann", 10**10)
    (tmp_path / "text.txt").rename(tmp_path / "same.txt")

    second = await poster.post(poster.job(data=str(tmp_path / "sam*.txt")))

    await poster.world.tick()
    assert second.job == first.job
    assert [row.job for row in await poster.jobs()] == [first.job]
    assert poster.tokens == FAUCET - BUDGET


@pytest.mark.parametrize("seconds", [20, 61], ids=["is sent as it was signed", "is too late"])
async def test_submit__signed_and_not_sent__is_sent_until_nobody_can_open_it(
    seconds: int, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)
    name, deadline = await signed_and_not_sent(poster)
    poster.world.wait(seconds)
    await poster.world.offer("ann", 10**10)

    submitted = await poster.post(poster.job())

    if seconds == 20:
        assert (submitted.job, submitted.spec.deadline) == (name, deadline)
    else:
        assert submitted.job != name
        assert submitted.spec.deadline == poster.world.chain.now + 3600
    assert [row.job for row in await poster.jobs()] == [submitted.job]


async def signed_and_not_sent(poster: Poster) -> tuple[bytes, int]:
    """Id and deadline of what was signed when the process was killed at its last request."""
    whole = await poster_at(poster.folder / "whole")
    undisturbed = whole.wire()
    await whole.post(whole.job(), undisturbed)
    with pytest.raises(Killed):
        await poster.post(poster.job(), poster.wire(undisturbed.asked.index("POST jobs", 8)))
    (path,) = poster.orders
    signed = Order.model_validate_json(path.read_bytes()).spec()
    assert signed is not None and await poster.jobs() == []
    return signed.message.job(), signed.message.deadline


async def test_submit__over__is_found_and_again_orders_once_more(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)
    first = await poster.post(poster.job())
    await poster.end(first.job)

    found = await poster.post(poster.job())
    second = await poster.post(poster.job(), again=True)
    third = await poster.post(poster.job())

    assert (found.job, found.is_over, found.is_new) == (first.job, True, False)
    assert second.job != first.job and second.is_new
    assert third.job == second.job
    assert len(await poster.jobs()) == 2


@pytest.mark.parametrize(
    "is_answer_lost",
    [pytest.param(False, marks=pytest.mark.nightly), True],
    ids=["not sent", "answer lost"],
)
async def test_submit__again_killed_before_its_answer__again_and_plain_find_the_same(
    is_answer_lost: bool, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)
    first = await poster.post(poster.job())
    last = poster.wire()
    await poster.post(poster.job(name="other"), last)
    number = len(last.asked) - 1  # `POST jobs` with the order
    assert last.asked[number] == "POST jobs"
    await poster.more_coordinators(1)
    with pytest.raises(Killed):
        wire = poster.wire(number, is_answer_lost=is_answer_lost)
        await poster.post(poster.job(), wire, again=True)

    second = await poster.post(poster.job(), again=True)
    third = await poster.post(poster.job())

    assert second.job == third.job != first.job
    assert len(await poster.jobs()) == 3


async def test_submit__market_that_lost_the_job__is_a_conflict_until_again(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    await poster.post(poster.job())
    other = await poster_at(tmp_path)

    with pytest.raises(errors.Conflict, match="--again"):
        await other.post(other.job())
    assert await other.jobs() == []

    assert (await other.post(other.job(), again=True)).is_new


async def test_submit__market_made_anew__orders_afresh_and_on_return_finds_the_first(
    tmp_path: Path,
) -> None:
    old, new = await poster_at(tmp_path), await poster_at(tmp_path, began=START + 1)
    first = await old.post(old.job())
    (tmp_path / "orders" / "permit").write_text('{"nonce":9,"job":"' + "00" * 32 + '"}')

    second = await new.post(new.job())
    found = await old.post(old.job())

    assert second.is_new and not found.is_new
    assert first.job == found.job != second.job
    assert len(await old.jobs()) == len(await new.jobs()) == len(old.orders) == 1


async def test_submit__two_at_once__one_is_refused(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)

    found = await asyncio.gather(
        poster.post(poster.job()), poster.post(poster.job()), return_exceptions=True
    )

    assert [type(each) for each in found].count(errors.Conflict) == 1
    assert len(await poster.jobs()) == 1


async def test_submit__not_agreed__asks_for_nothing_and_signs_nothing(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    await poster.world.offer("ann", 10**10)
    seen: list[tuple[str, ...]] = []

    def refuse(plan: Plan) -> None:
        seen.append(plan.costly)
        raise errors.Unconfirmed("no")

    with pytest.raises(errors.Unconfirmed):
        await poster.post(poster.job(), agree=refuse)

    assert "you would pay your ceiling" in seen[0][0]
    assert poster.orders == [] and await poster.jobs() == []
    assert poster.tokens == 0


@pytest.mark.parametrize("text", ["", '{"signed": "ab"}'])
async def test_submit__order_that_is_damaged__is_named_and_kept(text: str, tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    with pytest.raises(Killed):
        await poster.post(poster.job(), poster.wire(10))
    (draft,) = poster.orders
    draft.write_text(text)

    with pytest.raises(errors.Malformed, match=draft.name):
        await poster.post(poster.job())

    assert draft.read_text() == text
    assert await poster.jobs() == []


# ------------------------------------------------------------------------------------ bad markets


@pytest.mark.parametrize("budget", [10, 11], ids=["same file", "changed as it was told"])
async def test_submit__market_that_takes_the_order_and_refuses_it__is_paid_once(
    budget: int, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)
    with pytest.raises(errors.Conflict):
        await poster.post(poster.job(), Denying(poster.world.api(), poster.world))
    await poster.world.tick()  # it had the job's deposit from the first permit

    with pytest.raises(errors.Conflict, match="may be in escrow"):
        wire = Denying(poster.world.api(), poster.world)
        await poster.post(poster.job(budget=budget), wire)

    await poster.world.tick()
    assert poster.tokens == FAUCET - BUDGET
    await poster.post(poster.job(budget=budget), again=True)
    assert len(await poster.jobs()) == 2


async def test_submit__market_that_says_it_is_elsewhere_since__is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "DEVELOPMENT_CHAINS", ())
    poster = await poster_at(tmp_path, num_coordinators=2)
    first = await poster.post(poster.job())
    await poster.world.tick()

    second = await poster.post(poster.job(), Moving(poster.world.api(), poster.world))

    await poster.world.tick()
    assert second.job == first.job and poster.tokens == FAUCET - BUDGET


async def test_submit__answer_that_is_garbled__same_file_finds_the_job(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path, num_coordinators=2)
    garbled = Denying(poster.world.api(), poster.world, is_hiding=False)
    garbled.answer = httpx.Response(202, text="<html>")

    posted = await poster.post(poster.job(), garbled)
    found = await poster.post(poster.job())

    await poster.world.tick()
    assert [row.job for row in await poster.jobs()] == [found.job] == [posted.job]
    assert poster.tokens == FAUCET - BUDGET


async def test_submit__market_that_names_the_domain_of_another_token__gets_no_permit_for_it(
    tmp_path: Path,
) -> None:
    poster = await poster_at(tmp_path)
    usd = WalletDomain("USD Coin", "2", 1, Address(b"\xa0" * 20)).separator
    wire = Renaming(poster.world.api(), poster.world, separator=usd)

    with pytest.raises(errors.WrongChain):
        await poster.post(poster.job(), wire)

    assert poster.wallet.account not in wire.signed_for_it


# --------------------------------------------------------------------------------------- refusals


async def refused(poster: Poster, kind: type[errors.TallystickError], **changed: object) -> str:
    """Why a job file with these changes is refused; it may have moved nothing."""
    with pytest.raises(kind) as error:
        await poster.post(poster.job(**changed))
    assert await poster.jobs() == []
    assert poster.world.chain.state.places == {}
    return str(error.value)


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"data": "/nowhere/*.txt"}, errors.NotFound, "/nowhere"),
        ({"data": "a\x00b"}, errors.Refused, "data"),
        ({"units_per_step": 1000}, errors.Refused, "use at least"),
        ({"vesting_window": 10**12}, errors.Malformed, "vesting_window"),
    ],
)
async def test_submit__job_that_cannot_be_signed__asks_for_nothing_and_leaves_no_draft(
    changed: dict[str, object], kind: type[errors.TallystickError], words: str, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path)

    assert words in await refused(poster, kind, **changed)

    assert poster.orders == []
    await poster.post(poster.job())  # the only coordinator is still there


async def test_submit__clock_off_by_more_than_two_minutes__is_expired(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    poster.now = poster.world.chain.now + 121

    assert "clock" in await refused(poster, errors.Expired)

    assert poster.orders == []


async def test_submit__tokens_that_come_later__pay_the_very_job(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    await refused(poster, errors.Unaffordable, budget=5000)
    (draft,) = poster.orders
    poster.world.chain.give_tokens(poster.wallet.account, BaseUnits(5000 * 10**6))

    submitted = await poster.post(poster.job(budget=5000))

    assert draft == poster.orders[0]
    assert [row.job for row in await poster.jobs()] == [submitted.job]


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        ({"price": 10**10, "memory_bytes": 2**20}, "memory 0.000977 GiB"),
        ({"price": 3 * 10**12}, "price_ceiling 3000000 tokens"),
        ({"price": 10**10, "expires_at": START + 100}, f"deadline {SOON:%Y-%m-%d %H:%M:%S} UTC"),
    ],
    ids=["model too large", "all too dear", "offers end too early"],
)
async def test_submit__fits_no_offer__is_told_before_it_pays_unless_it_wants_to_wait(
    offered: dict[str, int], words: str, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path)
    await poster.world.offer("ann", **offered)

    assert words in await refused(poster, errors.NoMatch)
    submitted = await poster.post(poster.job(), unmatched=True)

    assert [row.job for row in await poster.jobs()] == [submitted.job]
