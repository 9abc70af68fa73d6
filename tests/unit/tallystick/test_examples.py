"""Do the examples load, and mean what their comments say?"""

from pathlib import Path

import pytest

from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixSeconds
from market.domain.sizes import job_cost
from tallystick.sdk.job_file import load_job_file
from tallystick.sdk.job_spec import DataNames, build_spec

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example__loaded__is_a_job_that_fits_itself(path: Path) -> None:
    job = load_job_file(path)

    assert job.train_config().num_steps == (job.steps or 0)
    assert job.checking == ("on" if path.stem == "checked" else "off")
    spec = build_spec(
        job,
        job.train_config(),
        poster=Address(bytes(20)),
        coordinator=Address(bytes(20)),
        salt=0,
        data=DataNames(Digest(bytes(32))),
        now=UnixSeconds(0),
    )
    audits = 0 if spec.rules.audit is None else spec.rules.audit.budget
    assert job_cost(spec, spec.price_ceiling) + audits <= spec.budget
