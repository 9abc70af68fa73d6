"""`audit verify` as a stranger has it: the wheel, base dependencies, another folder, no network."""

import pytest

from tests.installed import Installed
from tests.support.audited import settled
from tests.support.history import SETTLEMENT
from tests.support.offline import offline_program, verify_options


@pytest.mark.nightly
@pytest.mark.timeout(300)  # builds and installs the wheel when no other test has
def test_verify__from_the_installed_wheel__exits_0_and_11(installed: Installed) -> None:
    file = installed.elsewhere / "job.tally"
    file.write_bytes(settled().data)
    verify = ("-c", offline_program(()), "audit", "verify", str(file))

    honest = installed.run(
        "python", *verify, *verify_options(anchor=settled().anchor, settlement=SETTLEMENT)
    )
    forged = installed.run(
        "python", *verify, *verify_options(anchor=settled().anchor, settlement=bytes(20))
    )

    assert (honest.returncode, honest.stderr) == (0, "")
    assert (forged.returncode, "chain/settlement" in forged.stderr) == (11, True)
