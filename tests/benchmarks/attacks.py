"""Which attacks are caught, what do they earn, and what would they cost if nobody looked?

`python -m tests.benchmarks.attacks [--only NAME ...] [--seed N] [--out FILE]` plays the attacks of
PROTOCOL section 8 one after the other on one real market: database, chain, providers and peers are
processes, coins are block hashes, stages are real (the micro recipe). It prints a table and exits
with 1 if an attack does not end as `ATTACKS` says.

Every peer-step and every sum is drawn, and where auditors lie every report is repeated, so that no
luck is involved; what lower rates do follows from `verification.odds` and `schedules`. Two staked
providers audit from outside. Each attack has a wallet of its own, and up to two jobs: with checking
off, for the damage, and on. Beside them, once for each shape of a job, both with everybody honest.

    lie, ruled   step of the first work, sum or report that was ruled on, and of the seal that did
    earned       by the liar when the job ended, in base units; beside it what an honest one earned
                 in its place. Prices are equal: the ceiling is what everybody asks.
    moved        with checking off: how far the final weights are from those of the honest run, in
                 parts of the way that training went. Honest runs differ from each other by the
                 order of their sums; a lie has to be `ABOVE_NOISE` times as far.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch

from contracts.governance.job import JobHistory, follow
from contracts.terms.amounts import BaseUnits
from contracts.terms.history import Kept
from contracts.terms.ids import Address, Digest, JobId, PeerId
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    JobSpec,
    Message,
    Seal,
)
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from tallystick.demo.shares import JobWork, read_work
from tallystick.gym.plan import parse
from tallystick.sdk.client import retrying
from tallystick.sdk.download import ENDED, download
from tests.benchmarks.stage_throughput import commit
from tests.e2e.test_checked import account_of
from tests.e2e.test_outside import OUTSIDE, said
from tests.support.stack import ASK, Stack, stack
from training.config import train_config, whole_model
from training.models.folder import WEIGHTS
from training.models.initial import initial_weights
from training.models.weights import Weights, tensors_in
from training.swarm.caps import OWNER_CAP
from verification.cases import Ruling
from verification.docket import Docket, begin_job

SEED = 1
ABOVE_NOISE = 10
PATIENCE = 600.0  # seconds for one job
TRIES = 6  # of jobs until two peers are neighbours

LIAR, MATE = "liar", "mate"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Shape:
    """What attacks have in common that can be compared with one honest run."""

    steps: int = 6
    units: int = 9
    stages: int = 1
    owners: int = 3  # of a stage
    slowdown: float = 1.0  # of all machines
    repeats: float = 0.0  # of reports, from outside

    @property
    def roles(self) -> tuple[str, ...]:
        """Who takes part; liar and mate are honest where no attack says otherwise."""
        leads = (LIAR, MATE)[: self.stages]
        others = ("ann", "bob", "cem", "dan")
        return (*leads, *others[: self.stages * self.owners - len(leads)])


USUAL = Shape()
LONG = Shape(steps=28)  # the norm gate closes after 25
NEIGHBOURS = Shape(units=8, stages=2, owners=2, repeats=1.0)  # two owners need strangers
CROWD = Shape(steps=4, units=20, owners=5, slowdown=20.0)  # five owners: the quarter holds

Outcome = Literal["convicted", "missing", "harmless"]
Seen: TypeAlias = tuple[str, bool]
"""What an attack showed beside its outcome, and whether it had to."""


# ------------------------------------------------------------------------------- what a job says


@dataclass(frozen=True)
class Told:
    """What the sealed history of a job establishes."""

    work: JobWork
    owners: Mapping[PeerId, Address]  # of members and outside auditors
    rulings: tuple[Ruling, ...]
    messages: tuple[Message, ...]

    def of(self, kind: type[M]) -> list[M]:
        """All messages of a kind."""
        return [each for each in self.messages if isinstance(each, kind)]

    def step_of(self, subject: Digest) -> int:
        """Of the work or the sum that a ruling is about, directly or by a report on it."""
        return next(
            each.step
            for each in self.messages
            if isinstance(each, GradCommit | AveragedChunk | AuditReport)
            and each.digest() == subject
        )

    def peer_of(self, account: Address) -> PeerId:
        """The one peer of an owner."""
        return next(peer for peer, owner in self.owners.items() if owner == account)

    def commits_of(self, account: Address) -> list[GradCommit]:
        """The peer-steps of an owner."""
        return [each for each in self.of(GradCommit) if self.owners[each.peer] == account]

    def weight_of(self, commit: GradCommit) -> Fraction:
        """Of a gradient in the mean, in parts of its samples; zero: it is not in it."""
        name = commit.digest()
        weights = [
            member.weight
            for average in self.of(AverageSet)
            for member in average.members
            if member.grad_commit == name
        ]
        return Fraction(sum(weights), commit.num_samples)


def read_job(items: Sequence[Kept], domain: Domain) -> Told:
    """Everything that a finished job's history says, with every message checked."""
    history, rulings, messages = JobHistory(domain, begin_job), list[Ruling](), list[Message]()
    for item in items:
        history = follow(history, item)
        if isinstance(item, Signed):
            messages.append(item.message)
            if isinstance(item.message, Seal):
                rulings += _rulings_after(history)
    assert history.record is not None  # it was opened
    owners = {peer: lease.account for peer, lease in history.record.pay_leases().items()}
    return Told(read_work(items, domain), owners, tuple(rulings), tuple(messages))


def _rulings_after(history: JobHistory) -> tuple[Ruling, ...]:
    checking = history.record.checking if history.record else None
    return checking.rulings if isinstance(checking, Docket) else ()


@dataclass(frozen=True)
class Run:
    """A job that was played to its end."""

    job: JobId
    spec: JobSpec
    told: Told
    names: Mapping[Address, str]  # roles, and who audits outside

    def account(self, role: str) -> Address:
        """Whose wallet played a role."""
        return next(account for account, name in self.names.items() if name == role)

    def earned(self, role: str) -> BaseUnits:
        """When the job ended: after forfeits."""
        return self.told.work.pay.get(self.account(role), BaseUnits(0))

    def stage(self, role: str) -> int:
        """That it worked in."""
        return self.told.work.workers[self.told.peer_of(self.account(role))].stage

    def rulings(self, what: str, role: str) -> list[Ruling]:
        """About one of the cast, the first seal first."""
        account = self.account(role)
        found = [each for each in self.told.rulings if each.what == what]
        own = [each for each in found if self.told.owners[each.peer] == account]
        return sorted(own, key=lambda each: (each.step, self.told.step_of(each.subject)))

    def outcome(self, role: str) -> Outcome:
        """What became of one of the cast."""
        if self.rulings("convicted", role):
            return "convicted"
        return "missing" if self.rulings("missing", role) else "harmless"

    def by(self, ruling: Ruling) -> tuple[str, ...]:
        """Names of who was heard."""
        return tuple(self.names[self.told.owners[peer]] for peer in ruling.by)


# ---------------------------------------------------------------------- what has to be seen besides


def _lies(attack: "Attack", run: Run) -> list[GradCommit]:
    """The liar's peer-steps while its lie lasts."""
    return [each for each in run.told.commits_of(run.account(LIAR)) if each.step in attack.lied]


def _gated(attack: "Attack", run: Run) -> Seen:
    lies = [each for each in _lies(attack, run) if each.step == attack.lied[0]]
    weight = max(map(run.told.weight_of, lies), default=Fraction(0))
    return f"weighs {float(weight):.4f}", 0 < weight < Fraction(1, 10)


def _not_averaged(attack: "Attack", run: Run) -> Seen:
    lies = _lies(attack, run)
    return "in no mean", bool(lies) and not any(map(run.told.weight_of, lies))


def _no_units(attack: "Attack", run: Run) -> Seen:
    units = sum(each.num_units for each in _lies(attack, run))
    return f"{units} units in steps {attack.lied[0]} to {attack.lied[-1]}", units == 0


def _redone(attack: "Attack", run: Run) -> Seen:
    step, stage = attack.lied[0], run.stage(LIAR)
    commits = [c for c in run.told.of(GradCommit) if (c.step, c.stage) == (step, stage)]
    is_whole = sum(each.num_units for each in commits) == attack.shape.units
    return f"step {step} done again by others", is_whole and not _lies(attack, run)


def _capped(attack: "Attack", run: Run) -> Seen:
    cap = ceil(OWNER_CAP * attack.shape.units)
    most = max(each.num_units for each in run.told.commits_of(run.account(LIAR)))
    return f"{most} of {attack.shape.units} units at most", most <= cap


# ------------------------------------------------------------------------------------- the attacks


@dataclass(frozen=True)
class Attack:
    """One row of the table, and how it has to end."""

    name: str
    about: str
    lie: str  # of `liar`, as `tallystick.gym.registry` reads it
    expected: Outcome = "convicted"
    shape: Shape = USUAL
    mate: str = ""  # what `mate` plays, in the other stage
    changes: Mapping[str, object] = field(default_factory=dict)  # of the job
    moves: bool = True  # whether numbers are falsified that the model is made of
    also: Callable[["Attack", Run], Seen] | None = None

    @property
    def liars(self) -> tuple[str, ...]:
        """Roles that lie."""
        return (LIAR, MATE) if self.mate else (LIAR,)

    @property
    def behaviours(self) -> Mapping[str, str]:
        """By role."""
        return {LIAR: self.lie, MATE: self.mate}

    @property
    def lied(self) -> range:
        """Steps in which the first of its lies is told."""
        plan = parse(self.lie.split("+")[0])[1]
        return range(plan.first, 1 + (self.shape.steps if plan.last is None else plan.last))


REPEATED = {"repeat_rate": 1.0}
IMPATIENT = {"exchange_timeout": "6s"}  # a step waits that long for parts that nobody can add

ATTACKS = (
    Attack("copied", "one unit computed and copied", "copied:from=2"),
    Attack("stale", "stale results", "stale:from=2"),
    Attack("skipped", "skipped units", "skipped:from=2"),
    Attack("half", "half the tokens, rescaled", "half:from=2,share=1/2"),
    Attack("flipped", "1 % of signs flipped", "flipped:from=2"),
    Attack("scaled", "gradient x1.01", "scaled:from=2"),
    Attack("coarse", "int8 weights", "coarse:from=2"),
    Attack("turned", "honest activations, wrong gradient", "turned:from=2"),
    Attack("huge", "huge norm for one step, among the first 25", "huge:from=2"),
    Attack("wrong_sum", "wrong sum", "wrong_sum:from=2"),
    Attack("left_out", "a part left out of a sum", "left_out:from=2"),
    Attack("leaving", "cheat and leave the job", "turned:from=2,until=2+leaving:from=2"),
    Attack("accuser", "false accusation", "accuser:from=2", changes=REPEATED, moves=False),
    Attack("stamp", "rubber-stamped audits", "stamp", changes=REPEATED, moves=False),
    Attack("friend", "claims from a friend", "friend", changes=REPEATED, moves=False),
    Attack(
        "not_finite_parts",
        "NaN in the gradient",
        "not_finite_parts:from=2,until=3",
        changes=IMPATIENT,
        moves=False,
        also=_not_averaged,
    ),
    Attack(
        "oversized_parts",
        "gradient twice as long",
        "oversized_parts:from=2,until=3",
        changes=IMPATIENT,
        moves=False,
        also=_not_averaged,
    ),
    Attack("gated", "huge norm for one step, later", "huge:from=27", shape=LONG, also=_gated),
    Attack(
        "withheld",
        "data withheld when drawn, alone",
        "withheld",
        "harmless",
        NEIGHBOURS,
        moves=False,
    ),
    Attack(
        "withheld_together",
        "data withheld with a neighbour",
        "withheld",
        "missing",
        NEIGHBOURS,
        mate="withheld",
        moves=False,
    ),
    Attack(
        "vanishing",
        "junk, then leave before GradCommit",
        "junk:from=3+vanishing:from=3",
        "harmless",  # to pay: the junk is paid to nobody
        NEIGHBOURS,
        also=_redone,
    ),
    Attack(
        "not_finite",
        "NaN tensors",
        "not_finite:from=2,until=3",
        "harmless",
        NEIGHBOURS,
        moves=False,
        also=_no_units,
    ),
    Attack(
        "oversized",
        "oversized tensors",
        "oversized:from=2,until=3",
        "harmless",
        NEIGHBOURS,
        moves=False,
        also=_no_units,
    ),
    Attack("junk", "junk at 20 x speed", "junk:from=2", shape=CROWD, also=_capped),
)


def job_of(shape: Shape, seed: int, *, is_checked: bool) -> dict[str, Any]:
    """What is posted."""
    return {
        "name": "attacks",
        "data_seed": seed,
        "model": {"init_seed": seed},
        "steps": shape.steps,
        "stages": shape.stages,
        "peers_per_stage": shape.owners,
        "units_per_step": shape.units,
        "budget": 200,
        "min_stake": 5,  # so much more than a step's pay that money at risk draws no repeats
        "price_ceiling": int(ASK),
        "vesting_window": 2,
        "commit_timeout": "20s",
        "exchange_timeout": "20s",
        "lease_grace": "5s",
        "checking": "on" if is_checked else "off",
        "audit_rate": 1.0,
        "sum_audit_rate": 1.0,
        "repeat_rate": shape.repeats,
    }


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
            f"{self.earned} of {self.honest}",
            str(len(self.blamed)),
            moved,
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| attack | outcome | lie, ruled | by | earned, of an honest one | honest ones blamed | "
    "moved unchecked (noise) |\n|---|---|---|---|---|---|---|"
)


def judged(attack: Attack, run: Run, reference: Reference, moved: float | None) -> Result:
    """What an attack came to, and what of it is not as it has to be."""
    outcomes = {role: run.outcome(role) for role in attack.shape.roles}
    honest = [role for role in outcomes if role not in attack.liars]
    outside = [name for name in OUTSIDE if run.rulings("convicted", name)]
    blamed = (*(role for role in honest if outcomes[role] != "harmless"), *outside)
    about, holds = attack.also(attack, run) if attack.also else ("", True)
    earned, usual = run.earned(LIAR), reference.checked.earned(LIAR)
    is_harmless = attack.expected == "harmless"
    problems = {
        f"{role} is {outcomes[role]}, not {attack.expected}": outcomes[role] == attack.expected
        for role in attack.liars
    } | {
        f"honest and blamed: {', '.join(blamed)}": not blamed,
        f"earned {earned}, an honest one {usual}": is_harmless or earned < usual,
        f"moved {moved}, noise {reference.noise}": moved is None
        or moved > ABOVE_NOISE * reference.noise,
        f"not so: {about}": holds,
    }
    ruling = next(iter(run.rulings(outcomes[LIAR], LIAR)), None)
    return Result(
        attack,
        outcome=outcomes[LIAR],
        lied_in=run.told.step_of(ruling.subject) if ruling else None,
        ruled_in=ruling.step if ruling else None,
        by=run.by(ruling) if ruling else (),
        earned=earned,
        honest=usual,
        blamed=blamed,
        moved=moved,
        noise=reference.noise,
        also=about,
        unmet=tuple(problem for problem, is_met in problems.items() if not is_met),
    )


# ------------------------------------------------------------------------------------ the theatre


class Theatre:
    """One market, and who stands on it now."""

    def __init__(self, running: Stack, seed: int, tell: Callable[[str], None]) -> None:
        self._stack, self._seed, self._tell = running, seed, tell
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
        self._tell(f"{attack.name}: {result.row()} {seconds:.0f} s")
        for problem in result.unmet:
            self._tell(f"{attack.name}: NOT AS EXPECTED: {problem}")
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
            if not attack.mate or run.stage(LIAR) != run.stage(MATE):
                break
            self._tell(f"{attack.name}: both in one stage, once more")
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
            self._tell(f"honest: {shape}, noise {noise:.1e}, {time.monotonic() - began:.0f} s")
        return self._references[shape]

    # -------------------------------------------------------------------------------------- people

    async def open(self) -> None:
        """Let those in who audit from outside."""
        for name in OUTSIDE:
            self._stack.start_provider(name, ask=None, stake="100")
        for name in OUTSIDE:
            await said(self._stack, name, "auditing from outside")

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
        self._stack.variables = {"TALLYSTICK_GYM": "1", "TALLYSTICK_PEER_BEHAVIOUR": behaviour}
        self._stack.start_provider(name, stake="100", slowdown=slowdown)

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
        told = await retrying(lambda: self._told(submitted.job))
        people = {**cast, **{name: name for name in OUTSIDE}}
        names = {account_of(self._stack, name): role for role, name in people.items()}
        return Run(submitted.job, submitted.spec, told, names)

    async def _told(self, job: JobId) -> Told:
        client = self._stack.client
        network = await client.network()
        items = [item async for _, item in client.messages(job)]
        return read_job(items, Domain(network.chain_id, network.contracts.settlement))

    async def _weights(self, run: Run) -> Weights:
        """The trained model."""
        folder = self._stack.folder / f"model-{run.job.hex()[:12]}"
        await download(self._stack.client, run.job, folder)
        blob = (folder / WEIGHTS).read_bytes()
        return {
            name: values.astype(np.float32) for name, values in tensors_in(blob, what="").items()
        }


def first_weights(spec: JobSpec) -> Weights:
    """Of a job's model before its first step."""
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    weights = initial_weights(config, whole_model(config))
    return {name: tensor.numpy() for name, tensor in weights.items()}


@asynccontextmanager
async def theatre(
    folder: Path, *, seed: int = SEED, tell: Callable[[str], None] = print
) -> AsyncIterator[Theatre]:
    """A market in `folder` with its outside auditors."""
    async with stack(folder, forked=True) as running:
        opened = Theatre(running, seed, tell)
        await opened.open()
        yield opened


# ------------------------------------------------------------------------------------ all of them


def named(names: Iterable[str]) -> tuple[Attack, ...]:
    """The attacks of these names, in the order of the table; all of them if none is named."""
    wanted = set(names) or {attack.name for attack in ATTACKS}
    found = tuple(attack for attack in ATTACKS if attack.name in wanted)
    assert {attack.name for attack in found} == wanted, f"unknown: {wanted}"
    return found


async def play(attacks: Sequence[Attack], seed: int, tell: Callable[[str], None]) -> list[Result]:
    """Play them on a market of their own."""
    with tempfile.TemporaryDirectory(prefix="tallystick-attacks-") as folder:
        async with theatre(Path(folder), seed=seed, tell=tell) as opened:
            return [await opened.perform(attack) for attack in attacks]


def report(results: Sequence[Result], seed: int, seconds: float) -> str:
    """The table, and where it was made."""
    about = {
        "seed": seed,
        "commit": commit(),
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seconds": round(seconds),
        "not as expected": [each.attack.name for each in results if each.unmet],
    }
    return "\n".join([HEAD, *(each.row() for each in results), "", json.dumps(about)])


def main() -> int:
    """Play and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(attack.name for attack in ATTACKS)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help=names)
    parser.add_argument("--seed", type=int, default=SEED, help="of model and data")
    parser.add_argument("--out", type=Path, help="write the table there, too")
    options = parser.parse_args()
    unknown = set(options.only) - {attack.name for attack in ATTACKS}
    if unknown:
        parser.error(f"no attack {', '.join(sorted(unknown))}; there are: {names}")

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    began = time.monotonic()
    results = asyncio.run(play(named(options.only), options.seed, tell))
    found = report(results, options.seed, time.monotonic() - began)
    print(found)
    if options.out:
        options.out.write_text(found + "\n")
    return 1 if any(each.unmet for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
