"""`audit verify` as a stranger has it: the wheel, base dependencies, another folder, no network."""

from dataclasses import replace

import pytest

from contracts.terms.ids import ZERO_ADDRESS
from tests.installed import Installed
from tests.support.audited import paid_job
from tests.support.offline import offline_program, verify_options


@pytest.mark.nightly
@pytest.mark.timeout(300)  # builds and installs the wheel when no other test has
def test_verify__from_the_installed_wheel__exits_0_and_11(installed: Installed) -> None:
    file, pins = installed.elsewhere / "job.tally", paid_job().pins
    file.write_bytes(paid_job().data)
    verify = ("-c", offline_program(()), "audit", "verify", str(file))

    honest = installed.run("python", *verify, *verify_options(pins))
    forged = installed.run("python", *verify, *verify_options(replace(pins, escrow=ZERO_ADDRESS)))

    assert (honest.returncode, honest.stderr) == (0, "")
    assert (forged.returncode, "chain/escrow" in forged.stderr) == (11, True)
