"""Variables are read in one way by all processes: empty is not set, `~` is the home folder."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts import settings
from contracts.settings import expanded, settings_of
from contracts.terms.errors import WrongConfiguration
from tallystick.sdk.folders import HomeSettings
from tallystick.up.settings import UpSettings, read_settings
from tests.architecture.checkout import ROOT, sources

OWN_RULES = {"tallystick/cli/wallet.py"}
"""An empty passphrase is not none: what is meant by it is asked."""


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of a container: no HOME, no entry in /etc/passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("TALLYSTICK_HOME", raising=False)
    nobody: dict[int, object] = {}
    monkeypatch.setattr(settings, "pwd", SimpleNamespace(getpwuid=nobody.__getitem__))


def test_settings__all_of_ours__are_read_in_one_way() -> None:
    odd = {str(path) for path in sources() if "(BaseSettings)" in (ROOT / path).read_text()}

    assert odd - OWN_RULES == {"contracts/settings.py"}


@pytest.mark.parametrize("home", ["~/t", "~/t/", str(Path.home() / "t")])
def test_settings__home__is_expanded_and_empty_is_not_set(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOME", home)
    monkeypatch.setenv("TALLYSTICK_MARKET", "")
    monkeypatch.setenv("TALLYSTICK_MIN_FREE_BYTES", "")

    assert HomeSettings().home == read_settings().home == Path.home() / "t"
    assert HomeSettings().market == "http://127.0.0.1:8420"
    assert read_settings(Path("~/other")).home == Path.home() / "other"
    monkeypatch.setenv("TALLYSTICK_HOME", "")
    assert HomeSettings().home == read_settings().home == Path.home() / ".tallystick"


@pytest.mark.usefixtures("homeless")
def test_settings__no_home__is_missed_only_where_it_is_needed(tmp_path: Path) -> None:
    found = HomeSettings()

    assert found.market and read_settings(tmp_path).home == found.home_or(tmp_path) == tmp_path
    for needs in (lambda: found.home, read_settings, lambda: expanded(Path("~/x"))):
        with pytest.raises(WrongConfiguration, match=r"has no entry.*TALLYSTICK_HOME"):
            needs()


def test_expanded__name_of_no_user__stays() -> None:
    assert expanded(Path("~nobody-of-this-name/x")) == Path("~nobody-of-this-name/x")
    assert expanded(Path("a/~")) == Path("a/~")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MIN_FREE_BYTES", "many", "TALLYSTICK_MIN_FREE_BYTES: .*integer"),
        ("CHAIN_PARAMETERS", "{", "chain_parameters"),
    ],
)
def test_settings_of__value_that_cannot_be__is_refused_without_showing_it(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TALLYSTICK_{variable}", value)

    with pytest.raises(WrongConfiguration, match=words):
        settings_of(UpSettings)
