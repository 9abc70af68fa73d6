"""Do jobs side by side show the losses that they had, and only what differs in their orders?"""

from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address
from market.bodies.jobs import JobView, ProgressView
from tallystick.sdk.compare import ROWS, compare
from tallystick.sdk.curves import Point, wall_seconds
from tests.support.history import DOMAIN, OPTIMIZER, make_spec, make_wallet


def view_of(**changed: Any) -> JobView:
    spec = make_spec(**changed)
    signed = make_wallet("poster").sign(spec, DOMAIN).encoded()
    return JobView(
        job=spec.job(), state="finished", outcome="finished", failure=None,
        spec=spec.model_dump(mode="json"), signed=signed,
        opening=None, coordinator=Address(bytes(20)), coordinator_address=None, leases=(),
        progress=ProgressView(
            step=1, trained=1, steps=1, loss_millionths=None, tokens_per_second=None
        ),
        reports=(), num_messages=0, funded=BaseUnits(0), committed=BaseUnits(0), free=BaseUnits(0),
        earned=BaseUnits(2_500_000), vested=BaseUnits(0), claimed=BaseUnits(0), not_matched=(),
        advice=None, transactions={}, unpublished=(),
    )  # fmt: skip


def points(num_steps: int, *, tokens: int = 100, validated: int | None = None) -> list[Point]:
    """A step a second, whose loss is 10 less a tenth of the step."""
    return [
        Point(
            step=step, time=1000.0 + step, loss=10 - step / 10,
            validation_loss=9.5 if step == validated else None, tokens=tokens * step,
            tokens_per_second=tokens, peers=2, bytes=8,
        )
        for step in range(1, num_steps + 1)
    ]  # fmt: skip


def test_compare__two_lengths__curves_go_to_the_longer_ones_end() -> None:
    short, long = view_of(salt=1), view_of(salt=2)

    found = compare([(short, points(6, tokens=300, validated=4)), (long, points(24))])

    assert [row.up_to for row in found.by_step] == list(range(2, 25, 2))
    assert found.by_step[0].losses_millionths == (9_850_000, 9_850_000)
    assert found.by_step[3].losses_millionths == (None, 9_250_000)
    assert found.by_tokens[-1].up_to == 2400 and len(found.by_tokens) <= ROWS
    assert found.by_tokens[-1].losses_millionths == (None, 7_650_000)
    first, second = found.jobs
    assert (first.step, first.tokens, first.loss_millionths) == (6, 1800, 9_400_000)
    assert (first.validation_millionths, first.validated_step) == (9_500_000, 4)
    assert second.validation_millionths is second.validated_step is None
    assert (first.seconds, second.seconds, first.cost) == (6, 24, 2_500_000)
    assert found.settings == ()


@pytest.mark.parametrize("steps", [1, 5, 11, 12, 13, 1000])
def test_compare__any_number_of_steps__each_is_in_one_row(steps: int) -> None:
    found = compare([(view_of(), points(steps))])

    ends = [row.up_to for row in found.by_step]
    assert ends == sorted(set(ends)) and ends[-1] == steps and len(ends) == min(ROWS, steps)


def test_compare__settings__those_that_differ_by_their_path() -> None:
    faster = OPTIMIZER.model_copy(update={"learning_rate": 6_000_000, "schedule": "wsd"})
    jobs = [view_of(salt=1), view_of(salt=2, optimizer=faster, steps=20, price_ceiling=7)]

    found = compare([(each, []) for each in jobs])

    assert {each.name: each.values for each in found.settings} == {
        "price_ceiling": ("1000000", "7"),
        "optimizer.learning_rate": ("0.003", "0.006"),
        "optimizer.schedule": ("cosine", "wsd"),
        "batch.steps": ("12", "20"),
    }
    assert found.jobs[0].loss_millionths is None and found.by_step == ()


def test_wall_seconds__of_nothing__is_none() -> None:
    assert wall_seconds([]) == 0.0
