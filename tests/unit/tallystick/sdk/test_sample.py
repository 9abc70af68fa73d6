"""A starter file: does it load, cost what was said and train what was asked for?"""

from datetime import timedelta
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Refused, Unaffordable
from tallystick.sdk.job_file import JobFile, job_schema, load_job_file
from tallystick.sdk.sample import Wanted, model_of_size, sample
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
    text = sample(wanted(parameters, budget, checking=checking))

    job = loaded(tmp_path, text)
    assert jsonschema_rs.Draft202012Validator(job_schema()).is_valid(yaml.safe_load(text))
    assert (job.budget, job.checking) == (budget * TOKEN, "on" if checking else "off")
    assert job.train_config().num_steps == job.steps


def test_sample__every_field__is_there_with_its_words() -> None:
    text = sample(wanted(2_000_000, 10))

    for name, field in job_schema()["properties"].items():
        assert f"{name}: " in text and field["description"] in text


@pytest.mark.parametrize("asked", [10**5, 2_000_000, 10**8, 7 * 10**9])
def test_model_of_size__asked_for__is_within_a_quarter(asked: int) -> None:
    model = model_of_size(asked)

    assert abs(num_parameters(model, whole_model(model)) / asked - 1) < 0.25


def test_sample__little_memory__is_cut_into_stages_that_fit(tmp_path: Path) -> None:
    asked = Wanted(10**8, BaseUnits(10**6 * TOKEN), peer_memory=4 * 2**30)

    job = loaded(tmp_path, sample(asked))

    model = job.train_config().model
    assert job.stages > 1
    assert peer_memory(model, whole_model(model), 4, audits=True) > 4 * 2**30


def test_sample__budget_below_one_step__says_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(Unaffordable) as refused:
        sample(wanted(10**8, 1))

    enough = BaseUnits(int(str(refused.value.data["budget_would_fit"])))
    assert loaded(tmp_path, sample(Wanted(10**8, enough))).steps == 1


@pytest.mark.parametrize("parameters", [0, -1, 10**13])
def test_sample__no_such_model__is_refused(parameters: int) -> None:
    with pytest.raises(Refused, match="parameters"):
        sample(wanted(parameters, 10))


def test_sample__schema_and_deadline_said__are_in_it() -> None:
    text = sample(
        Wanted(10**5, BaseUnits(TOKEN), deadline=timedelta(hours=3)), schema="../job.schema.json"
    )

    assert text.startswith("# yaml-language-server: $schema=../job.schema.json\n")
    assert "deadline: 10800s" in text
