"""A market on which attacks are played, each beside an honest run, and what they came to."""

import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from contracts.terms.ids import JobId
from contracts.terms.messages import JobSpec
from contracts.terms.typed_data import Domain
from tallystick.sdk.client import retrying
from tallystick.sdk.download import ENDED, download
from tests.benchmarks.attacks_cast import LIAR, MATE, Attack, Shape, job_of
from tests.benchmarks.attacks_told import Run, Told, read_job
from tests.e2e.test_checked import account_of
from tests.e2e.test_outside import OUTSIDE, said
from tests.support.stack import Stack, stack
from training.config import train_config, whole_model
from training.models.folder import WEIGHTS
from training.models.initial import initial_weights
from training.models.sources import FileSource
from training.models.weights import StoredWeights, Weights, tensors_in

SEED = 1
ABOVE_NOISE = 10
PATIENCE = 600.0  # seconds for one job
TRIES = 6  # of jobs until two peers are neighbours

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
        lied_in=run.told.step_of(ruling.subject) if ruling else None,
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
            if not attack.mate or run.are_neighbours(LIAR, MATE):
                break
            self._tell(f"{attack.name}: not neighbours, once more")
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
        self._stack.variables = {
            "TALLYSTICK_HOOKS": "tallystick.gym.hooks",
            "TALLYSTICK_PEER_BEHAVIOUR": behaviour,
        }
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
        return StoredWeights(tensors_in(FileSource(folder / WEIGHTS), what=str(folder)))


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
