"""`plan` of a job file at a market: every number, its formula, and what would help."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contracts.terms.moments import UnixSeconds
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.plan import Plan, plan
from tests.integration.bad_input.posting import Poster, poster_at
from tests.support.history import START, make_wallet

CHECKED = {"checking": "on", "peers_per_stage": 3, "price_ceiling": 200_000, "min_stake": 5}


async def planned(poster: Poster, job: JobFile) -> Plan:
    async with MarketClient("http://market", transport=poster.wire()) as client:
        return await plan(client, job, data=poster.folder / "data")


async def offering(poster: Poster, number: int, price: int, **changed: Any) -> None:
    for each in range(number):
        await poster.world.offer(f"seller {each}", price + each, **changed)


def numbers(schema: Any, defs: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Names of all numbers in a body, nested ones with a dot."""
    for name, field in schema["properties"].items():
        text = json.dumps(field)
        if inner := re.search(r"#/\$defs/(\w+)", text):
            yield from numbers(defs[inner[1]], defs, f"{prefix}{name}.")
        elif '"integer"' in text or "^[0-9]+$" in text:  # whole numbers, and those sent as text
            yield prefix + name


async def test_plan__checked_job_that_matches__every_number_has_its_formula(
    tmp_path: Path,
) -> None:
    poster = await poster_at(tmp_path)
    await offering(poster, 5, 10**10)

    found = await planned(poster, poster.job(**CHECKED, spares=1))

    assert found.fits and found.reasons == () and found.advice is None
    schema = Plan.model_json_schema()
    found_in = numbers(schema, schema["$defs"])
    told = {name for name in found_in if not name.startswith(("advice.", "not_matched."))}
    assert len(told) >= 38
    assert set(found.why) == told
    assert found.offers.model_dump() == {
        "offers": 5, "owners": 5, "slots": 3, "spares": 1, "spares_wanted": 1,
    }  # fmt: skip
    assert found.price.at_asks == found.price.lowest_losing_ask == 10**10 + 4
    assert found.cost.work_at_asks is not None
    assert found.cost.work_at_asks < found.cost.work_at_ceiling
    total = found.cost.work_at_ceiling + found.cost.verification_budget
    assert found.cost.total_at_ceiling == total
    assert found.cost.comes_back == found.cost.budget - total
    assert found.time.fits_deadline and found.time.seconds == found.stages[0].seconds
    assert [stage.offers_with_memory for stage in found.stages] == [5]
    assert found.checking is not None
    assert found.checking.first_rate >= found.checking.later_rate >= found.checking.floor
    floor, repeated = found.checking.floor, 1.2
    assert found.checking.expected_extra >= floor * repeated - 1
    assert found.stake.hours_of_income is not None and found.warnings == ()
    own, other = found.strategies
    assert (own.strategy, other.strategy) == ("every_step", "local")
    assert own.stake == found.stake.each and own.audit_rate == found.checking.first_rate
    assert own.tokens_a_second and other.tokens_a_second and "take " in found.which_strategy


async def test_plan__moves_nothing(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    before = dict(poster.world.blobs.blobs)

    found = await planned(poster, poster.job())

    assert not found.fits and found.cost.work_at_asks is None
    assert "too few offers" in found.which_strategy
    assert await poster.jobs() == [] and poster.orders == []
    assert poster.world.blobs.blobs == before
    assert poster.tokens == 0


async def test_plan__then_submit__signs_what_was_planned(tmp_path: Path) -> None:
    poster = await poster_at(tmp_path)
    await offering(poster, 2, 10**10)
    job = poster.job()

    before = await planned(poster, job)
    submitted = await poster.post(job)

    assert before.fits
    assert submitted.spec.budget == before.cost.budget
    assert submitted.spec.deadline - UnixSeconds(START) >= before.time.seconds_until_deadline


async def test_plan__no_stake_said__asks_for_what_enough_offers_hold_and_says_what_is_cheaper(
    tmp_path: Path,
) -> None:
    poster = await poster_at(tmp_path)
    held = 7 * 10**6
    for each in range(7):
        account = make_wallet(f"seller {each}").account
        poster.world.chain.give_tokens(account, held)
        poster.world.chain.deposit(account, held)
    await poster.world.tick()
    await offering(poster, 7, 19 * 10**12)
    dear = {**CHECKED, "min_stake": None, "price_ceiling": 20_000_000, "budget": 4000}

    alone = await planned(await poster_at(tmp_path / "no offers"), poster.job(**dear))
    found = await planned(poster, poster.job(**dear))

    assert alone.stake.each == 10 * 10**6
    assert found.stake.each == held < alone.stake.each
    assert found.fits and found.checking is not None and found.checking.expected_seconds
    assert any("min_stake" in each for each in found.checking.cheaper)
