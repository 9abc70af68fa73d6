"""Do the examples load, and mean what their comments say?"""

from pathlib import Path

import pytest

from tallystick.sdk.job_file import load_job_file

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example__loaded__is_a_job_that_fits_itself(path: Path) -> None:
    job = load_job_file(path)

    assert job.train_config().num_steps == (job.steps or 0)
    assert job.checking == "off"
