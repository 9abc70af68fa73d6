"""A checked `MemorySwarm` with the real stage and the shipped calibration: audits leave bundles.

Everything is drawn, sums and reports too. Auditors run what providers run (`compared`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.corpora import Corpus
from tests.support.dockets import audit_spec
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.swarm_job import MemorySwarm
from training.config import TrainConfig
from verification.distances.thresholds import shipped_calibration
from verification.docket import begin_job

CLASS = "cpu/x86_64/AVX2/torch-2.13.0"
"""Of everybody: one that the table holds against any other that this may run on."""


def evidence_swarm(
    folder: Path,
    config: TrainConfig,
    corpus: Corpus,
    *workers: str,
    outside: Sequence[str] = (),
    **changed: Any,
) -> MemorySwarm:
    """The swarm of a job that trains `config` and is checked whole."""
    from verification.auditing.auditor import compared  # torch: not for every process

    million = 10**6
    audit = audit_spec(
        sums=million,
        repeats=million,
        thresholds=shipped_calibration().digest(),
        deadline=8,
        device_class=CLASS if changed.get("strategy") == "local" else "",
    )
    papers = stage_papers(
        config,
        corpus.manifest.digest(),
        *workers,
        audit=audit,
        outside=tuple(outside),
        device_class=CLASS,
        **changed,
    )
    swarm = stage_swarm(folder, papers, corpus)
    swarm.begin, swarm.compare = begin_job, compared
    return swarm


def bundles_in(folder: Path) -> list[Path]:
    """What all auditors of a swarm have left."""
    return sorted(folder.glob("*/evidence/*.bundle"))
