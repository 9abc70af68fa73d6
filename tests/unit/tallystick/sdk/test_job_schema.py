"""Is the schema that editors read the one that the fields make, and does it say what they do?"""

import dataclasses
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from contracts.terms.errors import Malformed
from tallystick.sdk.job_file import ModelFields, OptimizerFields, job_schema, parse_job_file
from tallystick.sdk.job_schema import SCHEMA_PATH, schema_text
from training.config import ModelConfig, OptimizerConfig

EXAMPLES = Path(__file__).parents[4] / "examples"
GOOD = {"name": "a job", "budget": 10, "price_ceiling": 2000, "deadline": "1h"}


def fits(fields: dict[str, Any]) -> bool:
    return jsonschema_rs.Draft202012Validator(job_schema()).is_valid(fields)


def test_schema_file__as_shipped__is_what_the_fields_make() -> None:
    assert SCHEMA_PATH.read_text() == schema_text(), "run: python -m tallystick.sdk.job_schema"


def test_schema__every_field__has_words_and_what_a_person_writes() -> None:
    for holder in (job_schema(), *job_schema()["$defs"].values()):
        for name, field in holder["properties"].items():
            assert len(field["description"]) > 10, name
            assert "PT" not in str(field.get("default")), name


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_example__against_the_schema__fits_and_names_it(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    named = first.removeprefix("# yaml-language-server: $schema=")

    assert (path.parent / named).resolve() == SCHEMA_PATH
    assert fits(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("off", ["off", False], ids=["YAML 1.2", "YAML 1.1"])
def test_schema__checking_off__fits_however_yaml_reads_it(off: object) -> None:
    assert fits({**GOOD, "checking": off})


@pytest.mark.parametrize(
    "changed",
    [
        {"budgt": 1},
        {"stages": 65},
        {"deadline": "soon"},
        {"price_ceiling": 0},
        {"model": {"widht": 1}},
        {"boundary_codec": "zip"},
        {"budget": "many"},
        {"deadline": "99999999999999d"},
        {"steps": 0},
        {"steps": "3"},
        {"data": 5},
        {"name": "x" * 300},
        {"data_seed": 2**53},
        {"units_per_step": 10**9},
    ],
    ids=str,
)
def test_field__that_cannot_be__is_named_and_does_not_fit_the_schema(
    changed: dict[str, Any],
) -> None:
    assert fits(GOOD)
    assert not fits({**GOOD, **changed})
    with pytest.raises(Malformed, match=next(iter(changed))):
        parse_job_file({**GOOD, **changed})


def test_fields__of_model_and_optimizer__are_those_of_the_configuration() -> None:
    def names(cls: type[Any]) -> set[str]:
        return {field.name for field in dataclasses.fields(cls)}

    own = names(ModelConfig) - {"adapter"}  # a field of the job file itself
    assert set(ModelFields.model_fields) == own | {"folder", "job"}
    of_steps = {"total_steps"}  # a job's schedule is made for its steps
    assert set(OptimizerFields.model_fields) == names(OptimizerConfig) - of_steps
