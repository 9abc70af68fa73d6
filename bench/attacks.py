"""Which attacks are caught, what do they earn, and what would they cost if nobody looked?

`python -m bench.attacks [--only NAME ...] [--seed N]` plays the attacks of docs/threat-model.md one
after the other on one real market: database, chain, providers and peers are processes, beacons are
block hashes, stages are real (the micro recipe). It prints a table and exits with 1 if an attack
does not end as `ATTACKS` says. All take an hour on two cores; `--quick` plays a short one.

Every peer-step and every sum is drawn, and where auditors lie every report is repeated, so that no
luck is involved; what lower rates do follows from `verification.draws.odds`. Two
staked providers audit from outside. Each attack has a wallet of its own, and up to two jobs: with
checking off, for the damage, and on. Beside them, once for each shape of a job, both with everybody
honest.

    lie, ruled   step of the first work, sum or report that was ruled on, and of the seal that did
    earned       by the liar when the job ended, in base units, and what was forfeited; beside it
                 what one earned in the honest run, where it had other units to do. Prices are
                 equal: the ceiling is what everybody asks.
    moved        with checking off: how far the final weights are from those of the honest run, in
                 parts of the way that training went. Honest runs differ from each other by the
                 order of their sums; a lie has to be `ABOVE_NOISE` times as far.
"""

import argparse
import asyncio
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.attacks_cast import ATTACKS, LIAR, MATE, Attack, Run, Shape, job_of
from bench.measuring import about, limit, parsed, parser_of, tell
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.typed_data import Domain
from market.bodies.routes import GET_NETWORK
from tallystick.sdk.client import retrying
from tallystick.sdk.parts import ENDED, download
from tallystick.sdk.submit import Submitted
from tests.e2e.test_outside import OUTSIDE
from tests.support.money_story import account_of, until_said
from tests.support.stack import Stack, stack
from training.config import train_config, whole_model
from training.models.folder import WEIGHTS
from training.models.initial import initial_weights
from training.models.sources import FileSource
from training.models.weights import StoredWeights, Weights, tensors_in

SEED = 1
QUICK, QUICK_STEPS = ("scaled",), 3
ABOVE_NOISE = 10
PATIENCE = 600.0  # seconds for one job
TRIES = 6  # of jobs until two peers are neighbours


def named(names: Iterable[str]) -> tuple[Attack, ...]:
    """The attacks of these names, in the order of the table; all of them if none is named."""
    wanted = set(names) or {attack.name for attack in ATTACKS}
    found = tuple(attack for attack in ATTACKS if attack.name in wanted)
    assert {attack.name for attack in found} == wanted, f"unknown: {wanted}"
    return found


# ------------------------------------------------------------------------------------- the results


@dataclass(frozen=True)
class Reference:
    """What the honest runs of a shape came to."""

    checked: Run
    begin: Weights
    end: Weights
    noise: float

    def moved(self, weights: Weights) -> float:
        """How far from the honest end, in parts of the way to it."""
        return apart(weights, self.end) / apart(self.end, self.begin)


def apart(one: Weights, other: Weights) -> float:
    """Euclidean distance of two models of one shape."""
    assert one.keys() == other.keys()
    return math.sqrt(
        sum(float(np.square(one[name].astype(np.float64) - other[name]).sum()) for name in one)
    )


@dataclass(frozen=True)
class Result:
    """How an attack ended."""

    attack: Attack
    outcome: str = "not finished"
    lied_in: int | None = None
    ruled_in: int | None = None
    by: tuple[str, ...] = ()
    earned: int = 0
    forfeited: int = 0
    honest: int = 0  # earned in its place
    blamed: tuple[str, ...] = ()  # honest ones
    moved: float | None = None
    noise: float = 0.0
    also: str = ""
    seconds: float = 0.0
    unmet: tuple[str, ...] = ()

    def row(self) -> str:
        """Of the table."""
        ruled = "-" if self.lied_in is None else f"{self.lied_in}, {self.ruled_in}"
        moved = "-" if self.moved is None else f"{self.moved:.1e} ({self.noise:.0e})"
        cells = (
            self.attack.about,
            "; ".join(filter(None, (self.outcome, self.also))),
            ruled,
            ", ".join(self.by) or "-",
            f"{self.earned} and {self.forfeited}, {self.honest}",
            str(len(self.blamed)),
            moved,
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| attack | outcome | lie, ruled | by | earned and forfeited, an honest one | "
    "honest ones blamed | moved unchecked (noise) |\n|---|---|---|---|---|---|---|"
)


def judged(attack: Attack, run: Run, reference: Reference, moved: float | None) -> Result:
    """What an attack came to, and what of it is not as it has to be."""
    outcomes = {role: run.outcome(role) for role in attack.shape.roles}
    honest = [role for role in outcomes if role not in attack.liars]
    outside = [name for name in OUTSIDE if run.rulings("convicted", name)]
    blamed = (*(role for role in honest if outcomes[role] != "harmless"), *outside)
    about, holds = attack.also(attack, run) if attack.also else ("", True)
    is_harmless = attack.expected == "harmless"
    problems = {
        f"{role} is {outcomes[role]}, not {attack.expected}": outcomes[role] == attack.expected
        for role in attack.liars
    } | {
        f"honest and blamed: {', '.join(blamed)}": not blamed,
        "nothing forfeited": is_harmless or run.forfeited > 0,
        f"moved {moved}, noise {reference.noise}": moved is None
        or moved > ABOVE_NOISE * reference.noise,
        f"not so: {about}": holds,
    }
    ruling = next(iter(run.rulings(outcomes[LIAR], LIAR)), None)
    return Result(
        attack,
        outcome=outcomes[LIAR],
        lied_in=run.step_of(ruling.subject) if ruling else None,
        ruled_in=ruling.step if ruling else None,
        by=run.by(ruling) if ruling else (),
        earned=run.earned(LIAR),
        forfeited=run.forfeited,
        honest=reference.checked.earned(LIAR),
        blamed=blamed,
        moved=moved,
        noise=reference.noise,
        also=about,
        unmet=tuple(problem for problem, is_met in problems.items() if not is_met),
    )


# ------------------------------------------------------------------------------------ the theatre


class Theatre:
    """One market, and who stands on it now."""

    def __init__(self, running: Stack, seed: int) -> None:
        self._stack, self._seed = running, seed
        self._turn = 0
        self._references: dict[Shape, Reference] = {}

    async def perform(self, attack: Attack) -> Result:
        """Play one attack; what goes wrong on the way is in the result."""
        began = time.monotonic()
        try:
            result = await self._perform(attack)
        except AssertionError as error:  # a job that does not end, told with everybody's last words
            result = Result(attack, unmet=(str(error),))
            await self._cast((), 1.0, {})  # whoever hangs in it plays no more
        seconds = time.monotonic() - began
        result = replace(result, seconds=seconds)
        tell(f"{attack.name}: {result.row()} {seconds:.0f} s")
        for problem in result.unmet:
            tell(f"{attack.name}: NOT AS EXPECTED: {problem}")
        return result

    async def _perform(self, attack: Attack) -> Result:
        reference = await self._reference(attack.shape)
        cast = await self._cast(attack.shape.roles, attack.shape.slowdown, attack.behaviours)
        moved = None
        if attack.moves:
            run = await self._run(attack.shape, cast, attack.changes, is_checked=False)
            moved = reference.moved(await self._weights(run))
        run = await self._run(attack.shape, cast, attack.changes, is_checked=True)
        for _ in range(TRIES):
            if not attack.mate or run.are_neighbours(LIAR, MATE):
                break
            tell(f"{attack.name}: not neighbours, once more")
            run = await self._run(attack.shape, cast, attack.changes, is_checked=True)
        return judged(attack, run, reference, moved)

    async def _reference(self, shape: Shape) -> Reference:
        """The honest runs of a shape, played once."""
        if shape not in self._references:
            began = time.monotonic()
            cast = await self._cast(shape.roles, shape.slowdown, {})
            plain = await self._run(shape, cast, {}, is_checked=False)
            end = await self._weights(plain)
            checked = await self._run(shape, cast, {}, is_checked=True)
            begin = first_weights(plain.spec)
            noise = apart(await self._weights(checked), end) / apart(end, begin)
            self._references[shape] = Reference(checked, begin, end, noise)
            blamed = [role for role in shape.roles if checked.outcome(role) != "harmless"]
            assert not blamed, f"{shape}: everybody is honest, and blamed are {blamed}"
            tell(f"honest: {shape}, noise {noise:.1e}, {time.monotonic() - began:.0f} s")
        return self._references[shape]

    # -------------------------------------------------------------------------------------- people

    async def open(self) -> None:
        """Let those in who audit from outside."""
        for name in OUTSIDE:
            self._stack.start_provider(name, ask=None, stake="100")
        for name in OUTSIDE:
            await until_said(self._stack, name, "auditing from outside")

    async def _cast(
        self, roles: Iterable[str], slowdown: float, behaviours: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Provider by role. Leads are strangers each time; the others stay while they fit."""
        self._turn += 1
        speed = f"{slowdown:.0f}"
        turns = {LIAR: str(self._turn), MATE: str(self._turn)}
        cast = {role: f"{role}-{turns.get(role, speed)}" for role in roles}
        standing = self._stack.providers.keys() - set(OUTSIDE)
        for name in sorted(standing - set(cast.values())):
            await self._stack.retire(name)
        for role, name in cast.items():
            if name not in standing:
                self._start(name, slowdown, behaviours.get(role, ""))
        return cast

    def _start(self, name: str, slowdown: float, behaviour: str) -> None:
        self._measured_like(OUTSIDE[0], name)
        self._stack.start_provider(name, stake="100", slowdown=slowdown, lie=behaviour)

    def _measured_like(self, other: str, name: str) -> None:
        """All machines are this one: it is probed once."""
        home = self._stack.folder / name
        home.mkdir(mode=0o700, exist_ok=True)
        shutil.copy2(self._stack.folder / other / "probe.json", home)

    # ---------------------------------------------------------------------------------------- jobs

    async def _run(
        self,
        shape: Shape,
        cast: Mapping[str, str],
        changes: Mapping[str, object],
        *,
        is_checked: bool,
    ) -> Run:
        job = job_of(shape, self._seed, is_checked=is_checked)
        submitted = await retrying(lambda: self._stack.submit(**{**job, **changes}))
        await self._stack.until(submitted.job, lambda v: v.state in ENDED, within=PATIENCE)
        people = {**cast, **{name: name for name in OUTSIDE}}
        names = {account_of(self._stack, name): role for role, name in people.items()}
        return await retrying(lambda: self._read(submitted, names))

    async def _read(self, submitted: Submitted, names: Mapping[Address, str]) -> Run:
        client = self._stack.client
        network = await client.call(GET_NETWORK)
        items = [item async for _, item in client.messages(submitted.job)]
        domain = Domain(network.chain_id, network.contracts.escrow)
        return Run.read(submitted, items, domain, names)

    async def _weights(self, run: Run) -> Weights:
        """The trained model."""
        folder = self._stack.folder / f"model-{run.job.hex()[:12]}"
        await download(self._stack.client, run.job, folder)
        return StoredWeights(tensors_in(FileSource(folder / WEIGHTS), what=str(folder)))


def first_weights(spec: JobSpec) -> Weights:
    """Of a job's model before its first step."""
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    weights = initial_weights(config, whole_model(config))
    return {name: tensor.numpy() for name, tensor in weights.items()}


async def play(options: argparse.Namespace) -> list[Result]:
    """Play attacks on a market of their own."""
    attacks = named(options.only)
    if options.quick:
        attacks = tuple(replace(a, shape=replace(a.shape, steps=QUICK_STEPS)) for a in attacks)
    with tempfile.TemporaryDirectory(prefix="tallystick-attacks-") as folder:
        async with stack(Path(folder), forked=True) as running:
            opened, results = Theatre(running, options.seed), list[Result]()
            await opened.open()
            for attack in attacks:
                with limit(45, attack.name):
                    results.append(await opened.perform(attack))
            return results


def main() -> int:
    """Play and print; returns the exit status."""
    parser = parser_of(__doc__)
    names = [attack.name for attack in ATTACKS]
    parser.add_argument(
        "--only", nargs="+", default=(), choices=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of model and data")
    options = parsed(parser, minutes=240, only=QUICK)
    began = time.monotonic()
    with limit(options.minutes, "attacks"):
        results = asyncio.run(play(options))
    print(HEAD, *(each.row() for each in results), "", sep="\n")
    unmet = [each.attack.name for each in results if each.unmet]
    seconds = round(time.monotonic() - began)
    print(json.dumps(about(seed=options.seed, seconds=seconds) | {"not as expected": unmet}))
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
