"""A small job cut into stages, without a swarm: units go up and down as bytes."""

from dataclasses import dataclass, replace

from contracts.terms.ids import ZERO_DIGEST, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import CodecName, DataSpec, JobSpec
from tests.numerics.loop import synthetic_corpus
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.history import make_spec
from training.config import TrainConfig, model_spec, optimizer_spec
from training.recipes import micro
from training.worker.ports import Passed
from training.worker.stage_compute import StageCompute

CORPUS = synthetic_corpus()
NUM_CHUNKS = 3
FIRST, UNITS = StepNumber(1), tuple(ItemNumber(unit) for unit in range(4))


def three_layers() -> TrainConfig:
    """Three layers, each of which may be a stage."""
    config = micro()
    return replace(config, model=replace(config.model, num_layers=3))


def spec_of(*layer_ends: int, codec: CodecName = "none", tied_head: bool = False) -> JobSpec:
    """A job of three layers that is cut behind these."""
    config = three_layers()
    model = replace(config.model, tied_head=tied_head)
    return make_spec(
        model=model_spec(model),
        optimizer=optimizer_spec(config.optimizer),
        data=DataSpec(manifest=CORPUS.manifest.digest(), seed=0, tokenizer=ZERO_DIGEST),
        item_flops=(1,) * len(layer_ends),
        stages=len(layer_ends),
        layer_ends=layer_ends,
        boundary_codec=codec,
        rows_per_unit=2,
        units_per_step=len(UNITS),
        chunks=NUM_CHUNKS,
    )


def stages_of(spec: JobSpec) -> list[StageCompute]:
    """The stages of a job, at their initial weights."""
    blobs = MemoryBlobs(CORPUS.blobs)
    return [
        StageCompute(spec, blobs, stage=StageIndex(stage)) for stage in range(spec.batch.stages)
    ]


@dataclass
class Trip:
    """What went into each stage for a unit, and what came out."""

    x: list[bytes | None]
    dy: list[bytes | None]
    passed: list[Passed]  # of the backward pass

    @property
    def loss(self) -> int:
        """Of the last stage."""
        loss = self.passed[-1].loss
        assert loss is not None
        return loss


def trip(stages: list[StageCompute], step: StepNumber, unit: ItemNumber) -> Trip:
    """A unit up and down through all stages, as bytes."""
    x: list[bytes | None] = [None]
    for stage in stages[:-1]:
        y = stage.forward(step, unit, x[-1]).y
        assert y is not None
        x.append(y.data)
    passed, dy = [stages[-1].forward(step, unit, x[-1])], list[bytes | None]([None])
    for stage in stages[-2::-1]:
        dx = passed[0].dx
        assert dx is not None
        dy.insert(0, dx.data)
        passed.insert(0, stage.backward(step, unit, None, dx.data))
    return Trip(x, dy, passed)
