"""Every verb under `-o json`: standard output is one document that its own schema takes.

The loop is over the registry of verbs. One that is neither called here nor excused fails, so a new
verb is called the moment it exists. The market is a real one over HTTP; a job
in it has been worked for and paid, the peer of another is convicted.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from eth_account import Account
from jsonschema_rs import Draft202012Validator

from contracts.terms.ids import JobId, PeerId, StepNumber
from market.bodies.base import Part, read_body
from market.service.rows import JobRow, ReportRow
from tallystick.cli.get import KINDS
from tallystick.cli.schema import VerbShown, verbs_shown
from tests.integration.bad_input.servers import empty_world, market_in_a_thread
from tests.integration.bad_input.verbs import Said, call, write_inputs
from tests.integration.market.test_slash_verbs import NAME, announced, market
from tests.support.audited import paid_job
from tests.support.databases import new_world
from tests.support.forging import retold
from tests.support.history import make_wallet
from tests.support.market_world import World
from verification.equivocation import contradictions

NOT_HERE = ("auditors", "batch", "lease", "operation", "slash")
"""Kinds of which that market has none of this name."""
ELSEWHERE = {
    "demo": "minutes: tests/integration/bad_input/test_demo.py",
    "deploy": "needs a chain of its own; its use case is what tests/support/anvil.py runs",
    "up": "needs services: tests/integration/up/test_up.py",
    "provider start": "until it is stopped: tests/integration/bad_input/test_provider.py",
    "audit export": "needs a real chain: tests/e2e/test_checked.py",
    "audit anchor": "needs a real chain: tests/e2e/test_readme.py",
    "audit rerun": "needs torch: tests/numerics/test_rerun.py",
    "job topup": "needs a real chain: tests/integration/market/test_top_up.py",
    "job reclaim": "needs a real chain: tests/integration/cli/test_poster_money.py",
    "provider settle": "needs a real chain: tests/integration/market/test_provider_verbs.py",
    "provider settle-all": "needs a real chain: tests/integration/market/test_provider_verbs.py",
    "provider quit": "needs a real chain: tests/integration/market/test_provider_verbs.py",
    "provider withdraw": "needs a real chain: tests/integration/market/test_provider_verbs.py",
    "provider withdraw-offer": "needs an offer: tests/integration/market/test_provider_verbs.py",
    "job download": "needs trained weights: tests/integration/swarm/test_life.py",
}
"""Verbs that cannot be called here, and why."""

EXIT_CODES = {"audit verify": (10,), "doctor": (0, 1), "job plan": (5,)}
"""Of verbs that say something else than 0 by it: nobody named a block; something may be missing."""

WIDE = ("doctor", "audit verify")
"""What is found on a machine is not cut, nor what is to be copied from a report."""


OF_A_KEYSTORE = (
    *("provider status", "provider earnings", "wallet show", "job pause", "job submit"),
    "job close",
)
"""Verbs that ask whose a keystore is, and have nothing to sign in this test."""


@dataclass(frozen=True)
class Place:
    """A folder with files, and three markets."""

    folder: Path
    paid: tuple[JobId, str]
    """A job that is over and was paid, and its market."""
    convicted: tuple[JobId, str]
    """A job in which stake is about to be slashed, and its market."""
    empty: str
    """A market whose clock is ours, to post to."""
    worker: PeerId
    """Who did the work of the job that was paid."""

    def environment(self) -> dict[str, str]:
        """What every call is given."""
        return {
            "TALLYSTICK_HOME": str(self.folder / "home"),
            "TALLYSTICK_MARKET": self.paid[1],
            "TALLYSTICK_PASSPHRASE": "open sesame",
        }

    def lines(self) -> dict[str, list[str]]:
        """What each verb is called with, and goes well."""
        at, job = str(self.folder), self.paid[0].hex()
        slashing = ["--market", self.convicted[1]]
        return {
            "down": ["--home", at],
            "doctor": ["--home", f"{at}/nothing"],
            "version": [],
            "schema": [],
            "data prepare": ["builtin", "--to", f"{at}/prepared"],
            "provider answer": [NAME.hex(), f"{at}/job.yaml", *slashing],
            "provider status": [],
            "provider earnings": ["--job", job],
            "provider drain": [],
            "job sample": [],
            "job schema": [],
            "job plan": [f"{at}/job.yaml", "--market", self.empty],
            "job submit": [f"{at}/job.yaml", "--dry-run", "--market", self.empty],
            "job list": [],
            "job show": [job],
            "job watch": [job],
            "job compare": [job, job],
            "job logs": [job],
            "job money": [job],
            "job spend": [job],
            "job peers": [job],
            "job steps": [job],
            "job trace": [job, "1", self.worker.hex()],
            "job pause": [self.convicted[0].hex(), "--dry-run", *slashing],
            "job resume": [self.convicted[0].hex(), "--dry-run", *slashing],
            "job cancel": [self.convicted[0].hex(), "--dry-run", *slashing],
            "job close": [self.convicted[0].hex(), "--dry-run", *slashing],
            "job checks": [job],
            "job slashes": [self.convicted[0].hex(), *slashing],
            "job evidence": [NAME.hex(), "--to", f"{at}/found.bundle", *slashing],
            "job timeline": [f"{at}/logs", "--to", f"{at}/trace.json"],
            "offers list": [],
            "market show": [],
            "audit list": [],
            "audit verify": [f"{at}/mine.tally"],
            "audit equivocation": [f"{at}/proof"],
            "audit compare": [f"{at}/mine.tally", f"{at}/theirs.tally", "--to", f"{at}/proof"],
            "wallet create": ["--wallet", f"{at}/new.json"],
            "wallet show": ["--balance"],
            "wallet import": [f"{at}/key", "--wallet", f"{at}/imported.json"],
            "params show": [],
            "get": ["jobs"],
        }


async def paid(world: World) -> JobId:
    """A job that has ended, and whose provider was paid."""
    maker = await world.start_job()
    for _ in range(3):
        maker.seal_step()
    await world.send(maker)
    for _ in range(8):
        world.wait(6)
        await world.tick()
    job = maker.spec.job()
    async with world.new_work() as work:
        row = await work[JobRow].get(job)
        assert row is not None
        await work[JobRow].put(replace(row, state="finished"))
        report = ReportRow(job, StepNumber(3), 5_000_000, 1234, world.now, 4_900_000)
        await work[ReportRow].add(report)
    return job


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    write_files(folder)
    with (
        market(new_world(), paid) as before,
        market(new_world(), announced) as now,
        market_in_a_thread(empty_world(int(time.time()))) as empty,
    ):
        yield Place(folder, before, now, empty, worker_of(folder, before[1]))


def worker_of(folder: Path, market: str) -> PeerId:
    """Who earned something at a market, as `provider earnings` says it."""
    home = {"TALLYSTICK_HOME": str(folder / "home"), "TALLYSTICK_MARKET": market}
    answer = call(["provider", "earnings", "-o", "json"], home)
    return PeerId(bytes.fromhex(json.loads(answer.stdout)["lines"][0]["peer"]))


def write_files(folder: Path) -> None:
    """Everything that a verb reads."""
    write_inputs(folder)
    (folder / "mine.tally").write_bytes(paid_job().data)
    again = replace(paid_job().file, items=tuple(retold(paid_job().job, steps=5).items))
    (folder / "theirs.tally").write_bytes(again.encoded())
    two = next(contradictions(paid_job().file.items, again.items, paid_job().file.domain))
    (folder / "proof").write_bytes(two.encoded())


def words_of(verb: VerbShown) -> str:
    return f"{verb.noun} {verb.verb}".strip()


VERBS = list(verbs_shown())
CALLED = [each for each in VERBS if words_of(each) not in ELSEWHERE]


def said(place: Place, verb: VerbShown, form: str) -> Said:
    words = words_of(verb)
    return call([*words.split(), *place.lines()[words], "-o", form], place.environment())


def test_registry__every_verb__is_called_or_excused(place: Place) -> None:
    assert {words_of(each) for each in VERBS} == place.lines().keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("verb", CALLED, ids=words_of)
def test_verb__as_json__is_one_document_that_its_schema_takes(
    verb: VerbShown, place: Place, tmp_path: Path
) -> None:
    answer = said(place, verb, "json")

    assert answer.exit_code in EXIT_CODES.get(words_of(verb), (0,)), answer
    Draft202012Validator(verb.document).validate(json.loads(answer.stdout))


@pytest.mark.nightly
@pytest.mark.parametrize("verb", CALLED, ids=words_of)
def test_verb__as_a_table__fits_a_terminal_of_80_columns(verb: VerbShown, place: Place) -> None:
    words = words_of(verb)
    made = {"wallet create": ["--wallet", f"{place.folder}/second.json"]}
    made["wallet import"] = [f"{place.folder}/key", "--wallet", f"{place.folder}/third.json"]
    line = [*words.split(), *made.get(words, place.lines()[words])]

    answer = call(line, place.environment() | {"COLUMNS": "80", "NO_COLOR": "1"})

    assert answer.exit_code in EXIT_CODES.get(words, (0,)), answer
    assert "\x1b" not in answer.stdout + answer.stderr
    drawn = [each for each in answer.stdout.splitlines() if "│" in each or "  " in each.strip()]
    if words not in WIDE:
        assert [each for each in drawn if len(each) > 80] == []


@pytest.mark.parametrize("kind", KINDS)
def test_get__of_every_kind__is_a_document_and_a_table(kind: str, place: Place) -> None:
    known = {"job": place.paid[0].hex(), "account": make_wallet("ann").account.hex()}
    known |= {"number": "1", "step": "1", "peer": place.worker.hex()}
    names = [known.get(name, "00" * 32) for name in KINDS[kind].names]

    document = call(["get", kind, *names, "-o", "json"], place.environment())
    table = call(["get", kind, *names], place.environment())
    rows = call(["get", kind, *names, "-o", "csv"], place.environment())

    if kind in NOT_HERE:
        assert (document.exit_code, table.exit_code) == (3, 3)
        return
    assert read_body(KINDS[kind].answers, document.stdout.encode())
    assert table.exit_code == 0 and table.stdout
    is_list = issubclass(KINDS[kind].answers, Part)
    assert (rows.exit_code, "has no rows" in rows.stderr) == ((0, False) if is_list else (2, True))


@pytest.mark.parametrize("line", [["jib"], ["job"], ["jobs", "ab"], ["job", "../status"]])
def test_get__of_what_is_no_kind_or_no_name__is_one_line(line: list[str], place: Place) -> None:
    said = call(["get", *line], place.environment())

    assert said.exit_code == 2 and said.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        ["provider", "status", "--account"],
        ["provider", "earnings", "--account"],
        ["audit", "verify", "mine.tally", "--anchor", "00" * 32, "--escrow"],
    ],
    ids=" ".join,
)
def test_verb__address_with_a_slip__is_refused(line: list[str], place: Place) -> None:
    slip = "0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"  # the first of EIP-55, and one capital
    line = [str(place.folder / each) if "." in each else each for each in line]

    said = call([*line, slip], place.environment())

    assert (said.exit_code, "EIP-55" in said.stderr) == (2, True), said


@pytest.mark.parametrize("words", OF_A_KEYSTORE)
def test_verb__keystore_that_names_no_account__is_opened(
    words: str, tmp_path: Path, place: Place
) -> None:
    home = str(tmp_path / "home")
    for name, path in (("ann", "home/provider/wallet.json"), ("poster", "home/poster.json")):
        kept = dict(Account.encrypt(make_wallet(name).secret, "open sesame", iterations=2))
        del kept["address"]  # as of Foundry
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(kept))
    line = [*words.split(), *place.lines()[words], "-o", "json"]

    answer = call(line, {**place.environment(), "TALLYSTICK_HOME": home})
    closed = call(
        line, {**place.environment(), "TALLYSTICK_HOME": home, "TALLYSTICK_PASSPHRASE": "x"}
    )

    assert answer.exit_code == 0, answer
    assert (closed.exit_code, "does not open" in closed.stderr) == (4, True), closed


def test_wallet__key_that_is_none__is_not_repeated(tmp_path: Path, place: Place) -> None:
    (tmp_path / "key").write_text("ab" * 31 + "x")

    done = call(["wallet", "import", str(tmp_path / "key")], place.environment())
    there = call(
        ["wallet", "import", str(tmp_path / "key"), "--wallet", str(tmp_path / "w")],
        place.environment(),
    )

    assert (done.exit_code, there.exit_code) == (6, 2)
    assert "abab" not in there.stderr + done.stderr
