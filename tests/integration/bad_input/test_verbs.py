"""Every verb of the command line, called badly: one clear line and a documented code each time.

The loop is over the registry of nouns and their verbs, so a new verb or option is tried the moment
it exists; one that needs a value nobody here knows fails until it is told.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallystick.cli.main import EXIT_CODES, NOUNS
from tests.integration.bad_input.servers import (
    HTML,
    NOBODY,
    answering,
    empty_world,
    market_in_a_thread,
)
from tests.integration.bad_input.verbs import (
    OF_FILES,
    URLS,
    USAGE,
    Parameter,
    Verb,
    call,
    complaint,
    verbs,
    write_inputs,
)
from tests.support.patience import patience
from tests.support.stack import ROOT

JOB_ID = "ab" * 32
DOCUMENTED = frozenset({USAGE, *EXIT_CODES.values()})
LONG = "x" * 5000
VERY_LONG = "x" * 1_000_000

VERBS = verbs()
ELSEWHERE = {
    *(("audit export", "rpc"), ("job close", "rpc"), ("job reclaim", "rpc")),
    *((f"provider {word}", "rpc") for word in ("settle", "settle-all", "quit", "withdraw")),
    *((f"provider {word}", "market") for word in ("quit", "withdraw-offer")),
}
"""Verbs that ask nobody here: see tests/integration/audit, cli and market."""
ASKING = [(verb, each) for verb in VERBS for each in verb.parameters if each.name in URLS]


@dataclass(frozen=True)
class Place:
    """A folder with files of every kind, and what verbs would accept."""

    folder: Path
    market: str

    @property
    def environment(self) -> dict[str, str]:
        """What every call here is given."""
        return {"TALLYSTICK_HOME": str(self.folder / "home"), "TALLYSTICK_MARKET": self.market}

    @property
    def large(self) -> Path:
        """A file of 10 MB."""
        return self.folder / "large"

    def good(self) -> dict[str, str]:
        """By its name, a value of each parameter with which a verb goes as far as it can."""
        return {
            "file": str(self.folder / "job.yaml"),
            "other": str(self.folder / "job.yaml"),
            "market": self.market,
            "rpc": self.market,
            "job": JOB_ID,
            "jobs": JOB_ID,
            "names": str(self.folder / "nothing.txt"),  # or `to` would be there for the others
            "evidence": JOB_ID,
            "bundle": str(self.folder / "job.yaml"),
            "ask": "1000",
            "keys": str(self.folder / "keys"),
            "to": str(self.folder / "out" / "file"),
            "number": "1",
            "kind": "jobs",
            "amount": "1",
            "step": "1",
            "peer": JOB_ID,
            "source": str(self.folder / "key"),
            "folders": str(self.folder / "logs"),
            "home": str(self.folder / "home"),
            "wallet": str(self.folder / "wallet.json"),
        }

    def line(self, verb: Verb, /, **changed: str) -> list[str]:
        """A command line with all that is required, and these values."""
        good = self.good()
        wanted = {each.name for each in verb.parameters if each.required or each.name == "ask"}
        required = {name: good[name] for name in wanted}  # a provider asks, or only audits
        asks = ["--balance"] if verb.words == ("wallet", "show") else []
        return [*verb.line(required | changed), *asks]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths among the bad values mean a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    (folder / "large").write_bytes(b"a: [b, c]\n" * 1_000_000)
    write_inputs(folder)
    (folder / "logs" / "coordinator.log").write_text("")  # what is a bad folder holds no line
    with market_in_a_thread(empty_world(int(time.time()))) as market:
        yield Place(folder, market)


def bad_values(parameter: Parameter, place: Place) -> list[str]:
    """What a parameter can never be, malformed and oversized."""
    if parameter.kind in (int, float):
        return ["garbage", "nan", "9" * 400]
    if parameter.kind is str:
        empty = [""] if parameter.required or parameter.name in URLS else []
        return ["gar bage", VERY_LONG, *empty]
    below_a_file = str(place.large / "x")
    if parameter.name in ("home", "keys"):
        return [str(place.large), below_a_file, LONG]
    if parameter.name == "to":
        return [below_a_file, str(place.folder), LONG]
    return [str(place.large), below_a_file, str(place.folder), LONG]


def test_registry__every_noun__has_verbs_that_this_loop_can_call(place: Place) -> None:
    assert {verb.words[0] for verb in VERBS} == {noun.word for noun in NOUNS}
    assert len(VERBS) >= 11
    required = {each.name for verb in VERBS for each in verb.parameters if each.required}
    assert required <= place.good().keys()
    assert {parameter.name for _, parameter in ASKING} == set(URLS)


@pytest.mark.parametrize(
    ("verb", "parameter"),
    [(verb, each) for verb in VERBS for each in verb.parameters],
    ids=lambda each: each.name if isinstance(each, Parameter) else str(each),
)
def test_verb__malformed_or_oversized_value__is_one_line(
    verb: Verb, parameter: Parameter, place: Place
) -> None:
    for value in bad_values(parameter, place):
        said = call(place.line(verb, **{parameter.name: value}), place.environment)

        if verb.words == ("doctor",) and said.exit_code == 1:
            assert "FAIL" in said.stdout  # its report is the answer
        else:
            complaint(said, codes=DOCUMENTED if verb.words[0] == "audit" else DOCUMENTED - OF_FILES)


@pytest.mark.parametrize(
    ("verb", "parameter"),
    ASKING,
    ids=lambda each: each.name if isinstance(each, Parameter) else str(each),
)
def test_verb__url_of_nobody_or_of_no_market__is_one_line_that_names_it(
    verb: Verb, parameter: Parameter, place: Place
) -> None:
    def ask(url: str) -> tuple[int, str]:
        said = call(place.line(verb, **{parameter.name: url}), place.environment)
        return said.exit_code, complaint(said)

    code, line = ask("http://127.0.0.1:x")  # others: tests/unit/tallystick/sdk/test_client.py
    assert code == USAGE and "http://127.0.0.1:x" in line
    if (str(verb), parameter.name) in ELSEWHERE:
        return  # looks first for a job, or an offer, and finds none
    nobody = ask(NOBODY)
    assert nobody[0] == EXIT_CODES["error"] and NOBODY in nobody[1]
    with answering(HTML) as server:
        code, line = ask(server)
    assert code in (USAGE, EXIT_CODES["error"]) and server in line, line


@pytest.mark.parametrize("verb", [v for v in VERBS if v.words == ("audit", "verify")], ids=str)
@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/mem"])
def test_verify__device_that_never_ends__is_refused(verb: Verb, path: str, place: Place) -> None:
    said = call(place.line(verb, file=path), place.environment)

    assert path in complaint(said)


def test_show__ctrl_c_while_the_market_is_silent__ends_without_a_traceback(place: Place) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "tallystick", "job", "show", JOB_ID, "--market", url],
            cwd=ROOT,
            env={**os.environ, **place.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=patience(60))

    assert (process.returncode, said) == (130, ("", ""))
