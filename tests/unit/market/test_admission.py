"""May this job be posted? What would fit is in each refusal."""

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.errors import Conflict, Expired, Forbidden, NotFound, Refused, Unaffordable
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import MILLION, AuditSpec, JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain import sizes
from market.domain.admission import Surroundings, check_job
from market.domain.quote import quote
from market.domain.sizes import job_cost, other_cuts
from tests.support.dockets import audit_spec, calibration
from tests.support.history import START, make_spec, make_wallet
from tests.support.local_jobs import of_local_steps
from tests.support.market_world import derived
from verification.distances.thresholds import shipped_calibration

AROUND = Surroundings(
    UnixSeconds(START), missing_blobs=(), coordinator_known=True, calibration=calibration()
)
POSTER, COORDINATOR = make_wallet("poster"), make_wallet("coordinator")


def spec(**changed: Any) -> JobSpec:
    """A job that is admitted, but for what changed."""
    rules = {
        name: changed.pop(name) for name in ("audit", "peers_per_stage", "steps") if name in changed
    }
    first = make_spec(POSTER, COORDINATOR, price_ceiling=PricePerPflop(10**12), **rules)
    fitting = first.model_copy(update=derived(first))
    cost = job_cost(fitting, fitting.price_ceiling)
    return fitting.model_copy(update={"budget": BaseUnits(cost)} | changed)


def refusal(changed: JobSpec, around: Surroundings = AROUND) -> Refused:
    with pytest.raises(Refused) as caught:
        check_job(changed, around)
    return caught.value


def test_check_job__all_fits__is_admitted() -> None:
    check_job(spec(), AROUND)


def test_check_job__budget_below_cost__says_budget_ceiling_and_steps_that_fit() -> None:
    asked = spec(budget=BaseUnits(spec().budget // 2))

    found = refusal(asked)

    assert isinstance(found, Unaffordable)
    check_job(spec(budget=BaseUnits(int(str(found.data["budget_would_fit"])))), AROUND)
    ceiling = PricePerPflop(int(str(found.data["price_ceiling_would_fit"])))
    check_job(asked.model_copy(update={"price_ceiling": ceiling}), AROUND)
    steps = found.data["steps_would_fit"]
    assert isinstance(steps, int)
    batch = asked.batch.model_copy(update={"steps": steps})
    optimizer = asked.optimizer.model_copy(update={"warmup_steps": 0})
    check_job(asked.model_copy(update={"batch": batch, "optimizer": optimizer}), AROUND)


@pytest.mark.parametrize(
    ("field", "wrong", "fits", "error"),
    [
        ("open_by", START, START + 1, Expired),  # the time to open it is over
        ("deadline", START + 10, None, Expired),  # too near
        ("memory_bytes", 1, None, Refused),  # below that of the largest stage
    ],
)
def test_check_job__number_that_is_too_low__says_which_fits(
    field: str, wrong: int, fits: int | None, error: type[Refused]
) -> None:
    found = refusal(spec(**{field: wrong}))

    assert type(found) is error
    check_job(spec(**{field: fits or found.data["would_fit"]}), AROUND)


def test_check_job__other_flops_than_the_models__says_which_fit() -> None:
    found = refusal(spec(item_flops=(Flops(1),)))

    assert isinstance(found, Conflict)
    assert found.data["would_fit"] == [str(each) for each in spec().item_flops]


def test_check_job__sizes_that_do_not_divide__is_refused() -> None:
    model = spec().model.model_copy(update={"num_heads": 3})

    assert "num_heads" in refusal(spec(model=model)).message


# ----------------------------------------------------------------------------------- local steps


def local(audit: AuditSpec | None = None, **changed: Any) -> JobSpec:
    """A job of local steps that is admitted, but for what changed."""
    made = make_spec(POSTER, COORDINATOR, audit=audit, **of_local_steps(**changed))
    made = made.model_copy(update=derived(made))
    cost = job_cost(made, made.price_ceiling) + (audit.budget if audit else 0)
    return made.model_copy(update={"budget": BaseUnits(cost), "min_stake": BaseUnits(10**9)})


def test_check_job__local_steps__memory_is_of_rows_at_once() -> None:
    check_job(local(inner_steps=1000), AROUND)

    assert local(inner_steps=1000).memory_bytes == local().memory_bytes
    assert local().memory_bytes > spec().memory_bytes  # sealed weights, momentum, difference
    found = quote(local(), [], AROUND, UnixMillis(START * 1000))
    assert "3 owners" in found.reasons[0] and len(found.stages) == 1
    assert found.stages[0].memory_bytes == local().memory_bytes


def test_check_job__device_class_that_the_table_does_not_hold__says_which_it_does() -> None:
    table, known = shipped_calibration(), "cpu/x86_64/AVX2/torch-2.13.0"
    around = replace(AROUND, calibration=table)
    audit = audit_spec(
        margin=MILLION * 5 // 4,
        budget=BaseUnits(10**9),
        thresholds=table.digest(),
        device_class=known,
    )
    check_job(local(audit), around)

    found = refusal(local(audit.model_copy(update={"device_class": "abacus"})), around)

    assert known in str(found.data["would_fit"])


def test_cuts__local_steps__only_fewer_peers() -> None:
    assert {(cut.stages, cut.peers_per_stage) for cut in other_cuts(local())} == {(1, 1), (1, 2)}


# ---------------------------------------------------------------------------------- checked jobs


def checked(**changed: Any) -> JobSpec:
    """A checked job that is admitted, but for what changed."""
    audit = audit_spec(margin=MILLION * 5 // 4, budget=BaseUnits(10**9))
    plain = spec(audit=changed.pop("audit", audit), **changed)
    return plain.model_copy(update={"budget": BaseUnits(plain.budget + 10**9)})


def test_check_job__checked_and_all_fits__is_admitted() -> None:
    check_job(checked(), AROUND)


@pytest.mark.parametrize(("steps", "at_once"), [(4, 4), (12, 6)])
def test_check_job__audit_budget_below_what_waits_at_once__says_which_fits(
    steps: int, at_once: int
) -> None:
    def asked(budget: int) -> JobSpec:
        audit = audit_spec(margin=MILLION * 5 // 4, repeats=MILLION // 5, budget=BaseUnits(budget))
        return checked(audit=audit, steps=steps)

    found = refusal(asked(1))

    least = int(str(found.data["audit_budget_would_fit"]))
    step = asked(1).batch.units_per_step * asked(1).item_flops[0] * 10**12
    assert least == -(-step * at_once * 6 // 5 // 10**15)
    check_job(asked(least), AROUND)
    refusal(asked(least - 1))


def test_check_job__other_calibration_table__says_which_one_is_shipped() -> None:
    audit = audit_spec(thresholds=ZERO_DIGEST, budget=BaseUnits(10**9))

    found = refusal(checked(audit=audit))

    assert isinstance(found, Conflict)
    assert found.data["would_fit"] == calibration().digest().hex()


@pytest.mark.parametrize(("owners", "parts"), [(1, Fraction(1, 4)), (3, Fraction(3, 2))])
def test_check_job__stake_below_one_unit_of_the_dearest_stage__says_which_fits(
    owners: int, parts: Fraction
) -> None:
    asked = checked(min_stake=BaseUnits(0), peers_per_stage=owners)
    unit = pay_for(asked.item_flops[0], asked.price_ceiling)

    found = refusal(asked)

    least = int(str(found.data["min_stake_would_fit"]))
    assert abs(least - parts * unit) <= 3
    assert "raise min_stake" in found.message
    check_job(asked.model_copy(update={"min_stake": BaseUnits(least)}), AROUND)
    refusal(asked.model_copy(update={"min_stake": BaseUnits(least - 1)}))


def test_check_job__two_owners_and_nothing_repeated__no_stake_is_enough() -> None:
    found = refusal(checked(peers_per_stage=2, min_stake=BaseUnits(10**15)))

    assert "repeat_rate" in found.message and "peers_per_stage" in found.message


def test_derived__checked_job__has_room_for_a_replay() -> None:
    assert checked().memory_bytes > spec().memory_bytes


@pytest.mark.parametrize(
    ("around", "error"),
    [
        (replace(AROUND, missing_blobs=("manifest",)), NotFound),
        (replace(AROUND, coordinator_known=False), Forbidden),
    ],
)
def test_check_job__manifest_or_coordinator_unknown__is_refused(
    around: Surroundings, error: type[Refused]
) -> None:
    assert isinstance(refusal(spec(), around), error)


def large(**changed: Any) -> JobSpec:
    """A model of 6 billion parameters in one stage, in as many chunks as there may be."""
    model = spec().model.model_copy(
        update={
            "width": 4096, "num_layers": 30, "num_heads": 32, "num_kv_heads": 32,
            "ffn_width": 11_008, "sequence_length": 512,
        }
    )  # fmt: skip
    asked = spec()
    batch = {"layer_ends": (30,), "stages": 1, "chunks": 4096, "units_per_step": 4}
    rules = {"gradient_codec": "none", "boundary_codec": "none"} | changed.pop("rules", {})
    asked = asked.model_copy(
        update={
            "model": model,
            "batch": asked.batch.model_copy(update=batch | changed.pop("batch", {})),
            "rules": asked.rules.model_copy(update=rules),
        }
    )
    asked = asked.model_copy(update=derived(asked))
    cost = BaseUnits(job_cost(asked, asked.price_ceiling) + 10**15)
    return asked.model_copy(update={"budget": cost} | changed)


def test_check_job__billions_of_parameters_in_one_stage__are_admitted() -> None:
    check_job(large(), AROUND)


@pytest.mark.parametrize(
    ("changed", "around", "words"),
    [
        (
            {"batch": {"chunks": 90}},
            AROUND,
            r"a chunk of the gradient of stage 0 has 269891268 bytes, at most 251658240 fit",
        ),
        (
            {"batch": {"stages": 2, "layer_ends": (15, 30), "rows_per_unit": 31}},
            AROUND,
            "a unit between two stages has 260046848 bytes, at most 251658240 fit",
        ),
        (
            {"rules": {"audit": audit_spec()}, "min_stake": BaseUnits(10**15)},
            AROUND,
            "evidence against stage 0 has .* bytes, at most 2000000000 fit: use more stages",
        ),
        (
            {},
            replace(AROUND, free_bytes=10**9),
            "the trained model has .* bytes, at most 1000000000 fit: the market's disk is too full",
        ),
        (
            {"batch": {"steps": 50, "checkpoint_every": 10, "publish_every": 10}},
            replace(AROUND, free_bytes=10**11),
            "the trained model, published 5 times, has .* bytes, at most 100000000000 fit: the",
        ),
    ],
    ids=["chunk", "boundary", "evidence", "disk", "disk of all publications"],
)
def test_check_job__larger_than_what_carries_or_keeps_it__refused_with_the_bound(
    changed: dict[str, Any], around: Surroundings, words: str
) -> None:
    asked = large(**changed)

    found = refusal(asked, around)

    assert re.search(words, found.message), found.message
    assert int(str(found.data["bytes"])) > int(str(found.data["would_fit"]))


def test_check_job__more_weights_than_an_index_lists__refused_with_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "MAX_WHOLE_BYTES", 10**9)

    found = refusal(large())

    assert "the model of stage 0 has" in found.message and "more stages" in found.message
