"""How Postgres is run by users whom it refuses: root, and those without an entry in /etc/passwd."""

from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.up import postgres
from tallystick.up.data_folder import open_data_folder
from tallystick.up.postgres import find_runner, how_to_run

NAMELESS = 4242


@pytest.fixture
def nameless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of a user without an entry, who may not make user namespaces."""
    monkeypatch.setattr(postgres, "_OTHER_IDENTITY", ("false",))
    return tmp_path / "home"


def test_find_runner__user_without_an_entry_nor_namespaces__is_told_what_to_do(
    nameless: Path,
) -> None:
    folder, binaries = open_data_folder(nameless), postgres.find_binaries()

    for way in (
        lambda: find_runner(binaries, folder, uid=NAMELESS),
        lambda: how_to_run(binaries, uid=NAMELESS),  # what `doctor` says
    ):
        with pytest.raises(WrongConfiguration, match=r"4242 has no entry .*DATABASE_URL"):
            way()
