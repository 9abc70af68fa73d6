"""A starter file: does it load, cost what was said and train what was asked for?"""

from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Refused, Unaffordable
from market.domain.sizes import job_cost
from tallystick.sdk.job_file import JobFile, job_schema, load_job_file
from tallystick.sdk.sample import CHECKING_AIM, LEAST_STEPS, Wanted, model_of_size, sample
from tests.unit.tallystick.sdk.test_job_file import spec_of
from training.config import whole_model
from training.memory import num_parameters, peer_memory

TOKEN = 10**6


def loaded(folder: Path, text: str) -> JobFile:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_job_file(path)


def wanted(parameters: int, budget: int, *, checking: bool = True) -> Wanted:
    return Wanted(parameters, BaseUnits(budget * TOKEN), checking=checking)


@pytest.mark.parametrize("checking", [False, True], ids=["off", "on"])
@pytest.mark.parametrize(("parameters", "budget"), [(1, 1), (2_000_000, 10), (10**8, 10**6)])
def test_sample__any_size__loads_and_fits_the_schema(
    parameters: int, budget: int, checking: bool, tmp_path: Path
) -> None:
    text = sample(wanted(parameters, budget, checking=checking)).text

    job = loaded(tmp_path, text)
    assert jsonschema_rs.Draft202012Validator(job_schema()).is_valid(yaml.safe_load(text))
    assert (job.budget, job.checking) == (budget * TOKEN, "on" if checking else "off")
    assert job.train_config().num_steps == job.steps


@pytest.mark.parametrize("checking", [False, True], ids=["off", "on"])
@pytest.mark.parametrize(("parameters", "budget"), [(1, 1), (2_000_000, 100), (10**8, 10**5)])
def test_sample__local_steps__loads_as_a_job_that_the_budget_pays(
    parameters: int, budget: int, checking: bool, tmp_path: Path
) -> None:
    asked = Wanted(parameters, BaseUnits(budget * TOKEN), checking=checking, strategy="local")

    text = sample(asked).text

    job = loaded(tmp_path, text)
    assert jsonschema_rs.Draft202012Validator(job_schema()).is_valid(yaml.safe_load(text))
    spec = spec_of(job)
    assert spec.strategy == "local" and spec.batch.units_per_step == spec.batch.peers_per_stage
    audits = spec.rules.audit.budget if spec.rules.audit else 0
    assert job_cost(spec, spec.price_ceiling) + audits <= spec.budget


def test_sample__every_field__is_there_with_its_words() -> None:
    text = sample(wanted(2_000_000, 10)).text

    for name, field in job_schema()["properties"].items():
        assert f"{name}: " in text and field["description"] in text


@pytest.mark.parametrize("asked", [10**5, 2_000_000, 10**8, 7 * 10**9])
def test_model_of_size__asked_for__is_within_a_quarter(asked: int) -> None:
    model = model_of_size(asked)

    assert abs(num_parameters(model, whole_model(model)) / asked - 1) < 0.25


def test_sample__little_memory__is_cut_into_stages_that_fit(tmp_path: Path) -> None:
    asked = Wanted(10**8, BaseUnits(10**6 * TOKEN), peer_memory=4 * 2**30)

    job = loaded(tmp_path, sample(asked).text)

    model = job.train_config().model
    assert job.stages > 1
    assert peer_memory(model, whole_model(model), 4, audits=True) > 4 * 2**30


def test_sample__budget_below_ten_steps__says_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(Unaffordable) as refused:
        sample(wanted(10**8, 1))

    enough = BaseUnits(int(str(refused.value.data["budget_would_fit"])))
    assert loaded(tmp_path, sample(Wanted(10**8, enough)).text).steps == LEAST_STEPS


@pytest.mark.parametrize("parameters", [2 * 10**6, 2 * 10**7, 10**8])
@pytest.mark.parametrize("budget", [100, 1000])
def test_sample__by_default__checking_costs_at_most_eight_percent_after_the_first_steps(
    parameters: int, budget: int, tmp_path: Path
) -> None:
    found = sample(wanted(parameters, budget))

    job = loaded(tmp_path, found.text)
    assert found.checking is not None and job.min_stake is None
    assert found.checking.later_extra <= CHECKING_AIM * 10**6
    assert job.steps is not None and job.steps >= 3 * LEAST_STEPS
    assert 2 * job.vesting_window <= job.steps
    assert f"{found.checking.later_extra / 10**6:.2%} after the newcomers'" in found.text


@pytest.mark.parametrize("parameters", [0, -1, 10**13])
def test_sample__no_such_model__is_refused(parameters: int) -> None:
    with pytest.raises(Refused, match="parameters"):
        sample(wanted(parameters, 10))
