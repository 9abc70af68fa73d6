"""A `MemorySwarm` with the real stage: the job of a configuration, cut into stages."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import DataSpec, JobSpec
from contracts.terms.targets import TargetCounts
from tests.support.corpora import Corpus
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.swarm_job import MemorySwarm, Papers, make_papers
from training.config import TrainConfig, model_spec, optimizer_spec, slices_of
from training.data.loading import BlobSource, corpus_rows
from training.flops import item_flops
from training.strategies.registry import strategy_of
from training.worker.ports import Arithmetic


def stage_papers(
    config: TrainConfig,
    manifest: Digest,
    *workers: str,
    stages: int = 1,
    weights: Digest = ZERO_DIGEST,
    targets: TargetCounts | None = None,
    **changed: Any,
) -> Papers:
    """Papers of a job that trains `config` on a corpus; `changed` as in `make_papers`."""
    num_layers = config.model.num_layers
    ends = tuple(num_layers * stage // stages for stage in range(1, stages + 1))
    rows = config.data.rows_per_unit
    values: dict[str, Any] = {
        "model": model_spec(config.model, weights=weights),
        "optimizer": optimizer_spec(config.optimizer),
        "data": data_spec(config, manifest, targets),
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
    papers = make_papers(*workers, **values)
    return replace(papers, opening=replace(papers.opening, targets=targets))


def data_spec(config: TrainConfig, manifest: Digest, targets: TargetCounts | None) -> DataSpec:
    """What a job signs of a corpus; with targets of one that is made of chats."""
    return DataSpec(
        manifest=manifest,
        seed=config.data.seed,
        tokenizer=ZERO_DIGEST,
        objective="pretrain" if targets is None else "sft",
        targets=ZERO_DIGEST if targets is None else targets.digest(),
    )


def stage_swarm(folder: Path, papers: Papers, corpus: Corpus) -> MemorySwarm:
    """The swarm of that job."""
    return MemorySwarm(
        papers, folder, lambda spec: stage_arithmetic(spec, MemoryBlobs(corpus.blobs))
    )


def stage_arithmetic(spec: JobSpec, blobs: BlobSource) -> Arithmetic:
    """What the job's workers compute with, on the CPU."""
    return Arithmetic(partial(strategy_of, spec, blobs), corpus_rows(spec, blobs).read)
