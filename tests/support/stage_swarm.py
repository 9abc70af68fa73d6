"""A `MemorySwarm` with the real stage: the job of a configuration, cut into stages."""

from pathlib import Path
from typing import Any

from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import DataSpec
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.swarm_job import MemorySwarm, Papers, make_papers
from training.config import TrainConfig, model_spec, optimizer_spec, slices_of
from training.data.corpus import ShardedCorpus
from training.flops import item_flops
from training.stages.torch_free import chunk_elements
from training.strategies.port import Compute, Strategy
from training.strategies.registry import strategy_of


def stage_papers(
    config: TrainConfig, manifest: Digest, *workers: str, stages: int = 1, **changed: Any
) -> Papers:
    """Papers of a job that trains `config` on a corpus; `changed` as in `make_papers`."""
    num_layers = config.model.num_layers
    ends = tuple(num_layers * stage // stages for stage in range(1, stages + 1))
    rows = config.data.rows_per_unit
    values: dict[str, Any] = {
        "model": model_spec(config.model),
        "optimizer": optimizer_spec(config.optimizer),
        "data": DataSpec(manifest=manifest, seed=config.data.seed, tokenizer=ZERO_DIGEST),
        "item_flops": tuple(
            item_flops(config.model, piece, rows) for piece in slices_of(config.model, ends)
        ),
        "steps": config.num_steps,
        "units_per_step": config.data.units_per_step,
        "rows_per_unit": rows,
        "stages": stages,
        "layer_ends": ends,
        "chunks": 4,
        "checkpoint_every": 2,
        "validate_every": config.num_steps,
    } | changed
    return make_papers(*workers, **values)


def stage_swarm(folder: Path, papers: Papers, corpus: ShardedCorpus) -> MemorySwarm:
    """The swarm of that job."""
    spec, blobs = papers.spec.message, MemoryBlobs(corpus.blobs)

    def make_strategy(compute: Compute) -> Strategy:
        return strategy_of(spec, blobs, compute)

    return MemorySwarm(papers, folder, make_strategy, chunk_elements(spec))
