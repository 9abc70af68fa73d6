"""How far apart are honest devices, do the shipped thresholds pass them, and whom do they catch?

`python -m bench.calibration [--first-seed N] [--micro N] [--tiny N] [--wide N] [--deep N]
[--adapted N] [--family N] [--samples FILE]` trains small models for real, takes peer-steps of every
stage at initialisation, in the middle, at the end and after a step with the learning rate x30 (a
loss spike), has each computed by every device class of `calibration_devices` in fp32 and bf16, and
compares all pairs, under every codec. It prints three tables and a line of JSON with machine,
versions, commit and seeds: honest distances beside the shipped thresholds, mismatches among them,
and the detection rate of each attack with its Clopper-Pearson interval.

`--samples FILE` writes the honest distances for `python -m bench.calibration_table`; the
shipped table was made from other seeds than those that it was then measured with
(verification/README.md). A pair of tensors under a codec is one comparison. Claims of attackers
come from the first class.
"""

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from pathlib import Path
from typing import IO, Any, get_args

from torch import Tensor

from bench.calibration_attacks import ATTACKS, HONEST, Case
from bench.calibration_devices import (
    APART,
    AVX512,
    DEFAULT,
    GPU,
    KERNELS,
    SPLIT,
    Claim,
    Device,
    PeerStep,
    Unit,
    Variant,
    capability,
    compute,
    devices,
    save,
)
from bench.calibration_table import Sample
from bench.measuring import about, clopper_pearson, limit, parsed, parser_of, tell
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LOSS_SCALE, AdapterSpec, CodecName, LinearName, class_name
from tests.numerics.loop import items_of, rows_of, synthetic_corpus, train
from training.compression.codecs import codec
from training.config import StageSlice, TrainConfig, slices_of, whole_model
from training.models.parameters import parameter_shapes
from training.recipes import micro, tiny_llama
from training.stages.exact import set_threads
from training.stages.stage import Stage, UnitInputs, rows_tensor
from verification.distances.comparison import Comparison, Distances
from verification.distances.thresholds import (
    MEASURES,
    Calibration,
    DType,
    Recipe,
    decide,
    shipped_calibration,
)

UNITS, UNITS_OF_LARGE = 4, 2  # of a peer-step
LARGE, DEEP = 128, 8  # width, and layers, from which a model is large; a deep one has two stages
SPIKE = 30  # times the learning rate
AUDITORS = (AVX512, DEFAULT, SPLIT, *APART)  # whose replays attacks are tried on
DTYPES: tuple[DType, ...] = get_args(DType)

CORPUS = synthetic_corpus(40_000)


def wide(*, seed: int = 0) -> TrainConfig:
    """Longer sums than the shipped recipes have: width 512, rows of 256 tokens."""
    base = tiny_llama(seed=seed)
    model = replace(
        base.model, width=512, num_layers=2, num_heads=8, ffn_width=1024, sequence_length=256
    )
    data = replace(base.data, rows_per_unit=2)
    return replace(base, model=model, data=data, num_steps=12)


def adapted(*, seed: int = 0) -> TrainConfig:
    """Adapters of all layers, beside a model that was trained before."""
    base = micro(seed=seed)
    targets = tuple(sorted(get_args(LinearName)))
    adapter = AdapterSpec(rank=4 + 4 * (seed % 2), alpha=16, targets=targets)
    return replace(base, model=replace(base.model, adapter=adapter))


def deep(*, seed: int = 0) -> TrainConfig:
    """Long chains of rounding: stages of 16 layers."""
    base = micro(seed=seed, num_steps=10)
    model = replace(base.model, num_layers=32, width=64, ffn_width=128, sequence_length=64)
    return replace(base, model=model)


FAMILIES: Sequence[Mapping[str, Any]] = (
    {"qkv_bias": True},
    {"qk_norm": True, "head_dim": 16},
    {"unrotated_layers": (1,), "window": 8},
)


def family(*, seed: int = 0) -> TrainConfig:
    """What other families than Llama have, by turns."""
    base = micro(seed=seed)
    return replace(base, model=replace(base.model, **FAMILIES[seed % len(FAMILIES)]))


TRAININGS: Mapping[str, tuple[str, int, Callable[..., TrainConfig]]] = {
    "micro": ("the recipe micro", 24, micro),
    "tiny": ("the recipe tiny_llama", 2, tiny_llama),
    "wide": ("width 512", 1, wide),
    "deep": ("32 layers in two stages", 1, deep),
    "adapted": ("adapters beside micro", 4, adapted),
    "family": ("biases, norms of heads, or a window and a layer without positions", 6, family),
}
"""By option: of what, how many, and how they are made of a seed."""


def ends_of(config: TrainConfig) -> tuple[int, ...]:
    """How a model is cut: a stage a layer, or in halves if it is deep."""
    layers = config.model.num_layers
    return (layers // 2, layers) if layers >= DEEP else tuple(range(1, layers + 1))


# ---------------------------------------------------------------------------------- peer-steps


@dataclass(frozen=True, slots=True)
class Moment:
    """Weights of the whole model at one time of a training."""

    name: str
    step: int  # whose units are computed from them
    weights: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor]


def moments(config: TrainConfig) -> Iterator[Moment]:
    """Initialisation, middle and end of a short real training, and a spike from the middle."""
    rows, frozen = rows_of(config, CORPUS), dict[str, Tensor]()
    if config.model.adapter is not None:
        *_, last = moments(replace(config, model=replace(config.model, adapter=None)))
        frozen = dict(last.weights)
    stage = Stage(config.model, whole_model(config.model), config.optimizer, frozen=frozen)
    middle, end = config.num_steps // 2, config.num_steps - 1

    def moment(name: str, of: Stage, step: int) -> Moment:
        weights = {key: value.clone() for key, value in of.weights().items()}
        return Moment(name, step, weights, frozen)

    yield moment("start", stage, 1)
    train(stage, config, rows, range(1, middle))
    yield moment("middle", stage, middle)
    yield moment("spike", _spiked(stage, config, middle, frozen), middle + 1)
    train(stage, config, rows, range(middle, end))
    yield moment("end", stage, end)


def _spiked(stage: Stage, config: TrainConfig, step: int, frozen: Mapping[str, Tensor]) -> Stage:
    rate = config.optimizer.learning_rate * SPIKE
    spiked = Stage(
        config.model,
        whole_model(config.model),
        replace(config.optimizer, learning_rate=rate),
        frozen=frozen,
    )
    spiked.load(stage.weights() | stage.moments(), stage.counter)
    train(spiked, config, rows_of(config, CORPUS), [step])
    return spiked


def peer_steps(
    config: TrainConfig, moment: Moment, layer_ends: Sequence[int] = ()
) -> list[tuple[PeerStep, PeerStep]]:
    """For each stage (by default of `ends_of`) the peer-step of that moment, and the next one."""
    slices = slices_of(config.model, tuple(layer_ends or ends_of(config)))
    now, other = (_chain(config, slices, moment, step) for step in (moment.step, moment.step + 1))
    return list(zip(now, other, strict=True))


def _chain(
    config: TrainConfig, slices: Sequence[StageSlice], moment: Moment, step: int
) -> list[PeerStep]:
    """The stages at work on the units of a step: what came in is what each computes from."""
    model, rows = config.model, rows_of(config, CORPUS)
    weights = [_weights_of(config, piece, moment) for piece in slices]
    stages = [
        Stage(model, piece, config.optimizer, weights=own, frozen=moment.frozen)
        for piece, own in zip(slices, weights, strict=True)
    ]
    units: list[list[Unit]] = [[] for _ in slices]
    is_large = model.width >= LARGE or model.num_layers >= DEEP
    for number in range(UNITS_OF_LARGE if is_large else UNITS):
        rows_RT = rows_tensor(rows.load(items_of(config, step)[number]))
        for held, unit in zip(units, _pass(stages, ItemNumber(number), rows_RT), strict=True):
            held.append(unit)
    return [
        PeerStep(model, piece, own, tuple(held), moment.frozen)
        for piece, own, held in zip(slices, weights, units, strict=True)
    ]


def _weights_of(config: TrainConfig, piece: StageSlice, moment: Moment) -> dict[str, Tensor]:
    return {name: moment.weights[name] for name in parameter_shapes(config.model, piece)}


def _pass(stages: Sequence[Stage], name: ItemNumber, rows_RT: Tensor) -> list[Unit]:
    passed: list[Unit] = []
    x: Tensor | None = None
    for stage in stages:
        has_rows = stage.slice.has_embedding or stage.slice.has_head
        inputs = UnitInputs(rows_RT if has_rows else None, x)
        passed.append(Unit(inputs.rows_RT, x, None))
        x = stage.forward(name, inputs)
    dy: Tensor | None = None
    for at in range(len(stages) - 1, -1, -1):
        passed[at] = replace(passed[at], dy_RTD=dy)
        dy = stages[at].backward(name, dy)
    return passed


# ----------------------------------------------------------------------------------- comparing


def coded(claim: Claim, recipe: Recipe) -> Claim:
    """What an auditor decodes of a claim."""

    def through(kind: str, tensor: Tensor) -> Tensor:
        used = codec(recipe.codec_of(kind))
        return used.decode(used.encode(tensor), tensor.shape)

    return Claim(
        y=tuple(through("y", y) for y in claim.y),
        dx=tuple(through("dx", dx) for dx in claim.dx),
        loss=tuple((loss * LOSS_SCALE).round() / LOSS_SCALE for loss in claim.loss),
        gradient={name: through("gradient.", one) for name, one in claim.gradient.items()},
    )


def seen_once(claim: Claim, recipe: Recipe) -> Claim:
    """Without what an earlier recipe of `recipes` compared already, so that it counts once."""
    if recipe.boundary_codec == "none":
        return claim
    is_new = recipe.gradient_codec != "none"
    return replace(claim, loss=(), gradient=claim.gradient if is_new else {})


def compare(claimed: Claim, replayed: Claim, recipe: Recipe) -> Comparison:
    """The audit of one peer-step; both sides passed the codecs."""
    found = Comparison(recipe)
    for kind, ours, theirs in (
        ("y", claimed.y, replayed.y),
        ("dx", claimed.dx, replayed.dx),
        ("loss", claimed.loss, replayed.loss),
    ):
        for one, other in zip(ours, theirs, strict=True):
            found.add(kind, one, other)
    found.add_gradient(claimed.gradient, replayed.gradient)
    return found


def recipes(dtype: DType) -> Iterator[Recipe]:
    """Every codec: those of the gradient beside boundaries of the same name; "none" first."""
    for name in get_args(CodecName):
        yield Recipe(name, "none" if name == "blockwise8" else name, dtype)


Answers = Mapping[Variant, Claim]


def pairs(dtype: DType) -> Iterator[tuple[Variant, Variant]]:
    """Who is compared with whom: a class with itself, and each with each other."""
    names = devices(dtype)
    yield from ((Variant(name), Variant(name, second=True)) for name in names)
    yield from ((Variant(a), Variant(b, second=True)) for a, b in combinations(names, 2))


@dataclass
class Tally:
    """What all comparisons showed."""

    table: Calibration
    comparisons: Counter[DType] = field(default_factory=Counter)
    audits: Counter[DType] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    nearest: dict[tuple[DType, str, str], float] = field(default_factory=dict)
    farthest: dict[tuple[DType, str, str], Distances] = field(default_factory=dict)
    caught: dict[tuple[str, str], list[bool]] = field(default_factory=lambda: defaultdict(list))
    margins: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def honest(self, found: Comparison, recipe: Recipe, classes: tuple[str, str]) -> None:
        """Count one honest audit."""
        self.comparisons[recipe.dtype] += found.num_tensors
        self.audits[recipe.dtype] += 1
        group = group_of(classes)
        for kind, distances in found.farthest().items():
            key = (recipe.dtype, group, f"{kind}/{recipe.codec_of(kind)}")
            before = self.farthest.get(key, (0, 0, 0, 0))
            a, b, c, d = map(max, before, distances)
            self.farthest[key] = (a, b, c, d)
        if not self.table.holds(*classes, recipe.dtype):
            return
        thresholds = self.table.thresholds(recipe, found.farthest(), *classes)
        if decide(found.distances(), thresholds) == "mismatch":
            self.mismatches.append(f"{recipe} {classes}: {found.distances()}")
        for name, distance in found.distances():
            part = distance / max(thresholds[name], 1)
            key = (recipe.dtype, group, name.split("/")[1])
            self.nearest[key] = max(self.nearest.get(key, 0.0), part)

    def attacked(
        self, found: Comparison, recipe: Recipe, classes: tuple[str, str]
    ) -> tuple[bool, float]:
        """Whether an audit sees the attack, and how far above the threshold."""
        thresholds = self.table.thresholds(recipe, found.farthest(), *classes)
        verdict = decide(found.distances(), thresholds)
        most = max(far / max(thresholds[key], 1) for key, far in found.distances())
        return verdict == "mismatch", most


def group_of(classes: tuple[str, str]) -> str:
    """The row of a table that a pair of classes is shown in."""
    if classes[0] in APART or classes[1] in APART:
        return "bf16 partial sums"
    if classes[0] == classes[1]:
        return "same GPU" if classes[0] == GPU else "same class"
    if GPU in classes:
        return "GPU and " + ("CPU" if set(classes) <= set(KERNELS) else "simulated")
    real = sum(name in KERNELS for name in classes)
    return ("two simulated", "real and simulated", "two real")[real]


# ------------------------------------------------------------------------------------- the run


class Bench:
    """All devices, and what their answers add up to."""

    def __init__(
        self, folder: Path, stack: ExitStack, table: Calibration, samples: IO[str] | None
    ) -> None:
        self._folder, self._samples = folder, samples
        self._devices = [stack.enter_context(Device(name, folder)) for name in KERNELS]
        self.tally = Tally(table)

    def run(self, plan: Sequence[tuple[str, TrainConfig, int]], num_moments: int) -> Counter[str]:
        """Take all peer-steps of a plan; returns how many of which moment."""
        taken: Counter[str] = Counter()
        for name, config, seed in plan:
            for moment in islice(moments(config), num_moments):
                for number, (step, other) in enumerate(peer_steps(config, moment)):
                    self.take(step, other, seed * 1000 + moment.step * 10 + number)
                    taken[f"{name} {moment.name}"] += 1
            total, wrong = sum(self.tally.comparisons.values()), len(self.tally.mismatches)
            tell(f"{name} seed {seed}: {total} comparisons, {wrong} mismatches")
        return taken

    def take(self, step: PeerStep, other: PeerStep, seed: int) -> None:
        """Have a peer-step computed by everybody, compared, and lied about."""
        for dtype in DTYPES:
            answers = self._answers(step, dtype)
            for recipe in recipes(dtype):
                sent = {who: seen_once(coded(one, recipe), recipe) for who, one in answers.items()}
                self._compare(sent, recipe)
            if self.tally.table.pairs:
                honest = answers[HONEST]
                case = Case(step, honest, compute(other, HONEST, dtype), dtype, seed)
                self._attack(case, answers)

    def _answers(self, step: PeerStep, dtype: DType) -> Answers:
        path = self._folder / "peer-step"
        save(step, path)
        for device in self._devices:
            device.ask(path, (Variant(device.device), Variant(device.device, True)), dtype)
        simulated = [name for name in devices(dtype) if name not in KERNELS]
        variants = [Variant(name, second) for name in simulated for second in (False, True)]
        answers = {variant: compute(step, variant, dtype) for variant in variants}
        for device in self._devices:
            first, second = device.answer()
            answers[Variant(device.device)] = first
            answers[Variant(device.device, second=True)] = second
        return answers

    def _compare(self, sent: Answers, recipe: Recipe) -> None:
        for one, other in pairs(recipe.dtype):
            found = compare(sent[one], sent[other], recipe)
            classes = (one.device, other.device)
            self.tally.honest(found, recipe, classes)
            if self._samples is not None:
                self._write(found, recipe, classes)

    def _write(self, found: Comparison, recipe: Recipe, classes: tuple[str, str]) -> None:
        assert self._samples is not None
        first, second = sorted(classes)
        for kind, distances in found.farthest().items():
            key = f"{kind}/{recipe.codec_of(kind)}"
            sample = Sample(recipe.dtype, (first, second), key, distances)
            self._samples.write(sample.line() + "\n")

    def _attack(self, case: Case, answers: Answers) -> None:
        claims = {name: attack(case) for name, attack in ATTACKS.items()}
        for recipe in attacked_recipes(case.dtype):
            replays = {
                name: coded(answers[Variant(name, second=True)], recipe)
                for name in AUDITORS
                if name in devices(case.dtype)
            }
            for name, claim in claims.items():
                if claim is not None:
                    self._catch(name, coded(claim, recipe), replays, recipe)

    def _catch(self, name: str, sent: Claim, replays: Mapping[str, Claim], recipe: Recipe) -> None:
        by_column: dict[str, list[tuple[bool, float]]] = defaultdict(list)
        for device, replay in replays.items():
            found = compare(sent, replay, recipe)
            seen = self.tally.attacked(found, recipe, (HONEST.device, device))
            by_column[column_of(recipe, device)].append(seen)
        for column, all_seen in by_column.items():
            # One trial a peer-step: it counts as caught when an auditor of any class catches it.
            self.tally.caught[name, column].append(all(caught for caught, _ in all_seen))
            self.tally.margins[name, column].append(min(most for _, most in all_seen))


def attacked_recipes(dtype: DType) -> tuple[Recipe, ...]:
    """Without codecs, and in fp32 with the roughest that both kinds of tensors can have."""
    plain = Recipe(dtype=dtype)
    return (plain,) if dtype == "bfloat16" else (plain, Recipe("bfloat16", "bfloat16", dtype))


def column_of(recipe: Recipe, device: str) -> str:
    """The part of the table of attacks that an audit counts in."""
    if device in APART:
        return "bf16, auditor adds in bf16"
    if recipe.dtype == "bfloat16":
        return "bf16"
    return "fp32" if recipe.boundary_codec == "none" else "fp32, sent in bf16"


# -------------------------------------------------------------------------------------- tables


def print_honest(tally: Tally) -> None:
    """The largest honest distances without codec, and how near any came to its threshold."""
    print("largest honest distance, codec none, over all kinds but loss")
    print(f"{'arithmetic':10} {'pair of classes':20} {'tensor':9}" + _heads(MEASURES))
    rows: dict[tuple[str, str, str], list[Distances]] = defaultdict(list)
    for (dtype, group, key), distances in tally.farthest.items():
        kind, name = key.split("/")
        if name == "none":
            rows[dtype, group, "gradient" if kind.startswith("gradient") else kind].append(
                distances
            )
    for row, found in sorted(rows.items()):
        farthest = [max(column) / 1e9 for column in zip(*found, strict=True)]
        print(f"{row[0]:10} {row[1]:20} {row[2]:9}" + "".join(f"{x:13.1e}" for x in farthest))
    print("\nnearest that an honest distance came to its threshold (1 = mismatch), all codecs")
    groups = sorted({(dtype, group) for dtype, group, _ in tally.nearest})
    print(f"{'arithmetic':10} {'pair of classes':20}" + _heads(MEASURES))
    for dtype, group in groups:
        parts = [tally.nearest.get((dtype, group, measure), 0.0) for measure in MEASURES]
        print(f"{dtype:10} {group:20}" + "".join(f"{part:13.3f}" for part in parts))


def _heads(names: Sequence[str]) -> str:
    return "".join(f"{name:>13}" for name in names)


def print_attacks(tally: Tally) -> None:
    """Detection by one audit, with interval, and the least visible case."""
    columns = sorted(
        {column for _, column in tally.caught}, key=lambda name: (name[:2] == "bf", name)
    )
    print("\ndetection by one audit: caught / peer-steps [95 %], least distance / threshold")
    for column in columns:
        print(f"-- {column}")
        for name in ATTACKS:
            if trials := tally.caught.get((name, column)):
                low, high = clopper_pearson(sum(trials), len(trials))
                least = min(tally.margins[name, column])
                rate = f"{sum(trials):4}/{len(trials):<4} [{low:.4f}, {high:.4f}]"
                print(f"{name:30} {rate} {least:10.2f}x")


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--first-seed", type=int, default=1000)
    for name, (about_it, number, _) in TRAININGS.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"trainings of {about_it}")
    parser.add_argument("--samples", type=Path, help="write honest distances, and attack nothing")
    options = parsed(parser, minutes=24 * 60, micro=1, tiny=0, wide=0, deep=0, adapted=0, family=0)
    set_threads(1)
    seeds = range(options.first_seed, sys.maxsize)
    plan = [
        (name, make(seed=seed), seed)
        for name, (_, _, make) in TRAININGS.items()
        for seed in seeds[: getattr(options, name)]
    ]
    with limit(options.minutes, "calibration"), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        samples = options.samples and stack.enter_context(options.samples.open("w"))
        nothing = Calibration(samples="none", comparisons=0, measures=MEASURES, pairs=())
        bench = Bench(folder, stack, nothing if samples else shipped_calibration(), samples)
        taken = bench.run(plan, num_moments=2 if options.quick else 4)
    tally = bench.tally
    print_honest(tally)
    print(f"\nhonest mismatches: {len(tally.mismatches)}", *tally.mismatches[:5])
    print_attacks(tally)
    found = {
        "comparisons": dict(tally.comparisons),
        "audits": dict(tally.audits),
        "mismatches": len(tally.mismatches),
        "peer_steps": dict(taken),
        "table": tally.table.digest().hex() if tally.table.pairs else "",
        "attacks": {" | ".join(key): [sum(all), len(all)] for key, all in tally.caught.items()},
        "seeds": sorted({seed for _, _, seed in plan}),
        "class": class_name(capability()),
    }
    print(json.dumps(found | about()))
    if tally.mismatches:
        raise SystemExit("an honest device would be convicted")


if __name__ == "__main__":
    main()
