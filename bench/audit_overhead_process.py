"""One process of a job of `bench.audit_overhead`, and what all of them agree on.

They are those of `tests.support.swarm_process`: real transport, disks, journals, stage and audits,
with one folder in place of the market. `python -m bench.audit_overhead_process ROLE
FOLDER`, after `OverheadJob.write` into the folder. Rates are parts of 1e6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.measuring import Agreed
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Digest
from contracts.terms.messages import MILLION, AuditSpec
from tests.support.dockets import audit_spec
from tests.support.stage_swarm import stage_papers
from tests.support.swarm_job import COORDINATOR, Papers
from tests.support.swarm_process import main
from training.config import DataConfig, TrainConfig
from training.recipes import tiny_llama
from verification.distances.thresholds import shipped_calibration

STAGES, PEERS_A_STAGE = 2, 3
PEERS = tuple(f"peer-{number}" for number in range(STAGES * PEERS_A_STAGE))
ROLES = (COORDINATOR, *PEERS)
UNITS, ROWS = 12, 4  # of a step; of a unit
CHUNKS = 2 * PEERS_A_STAGE
MODEL: Mapping[str, Any] = {"num_layers": 6, "sequence_length": 256}  # else as `tiny_llama`
QUICK: Mapping[str, Any] = {
    "width": 32, "num_layers": 2, "ffn_width": 64, "sequence_length": 64,
}  # fmt: skip
SUMS_DRAWN = MILLION // 10
DEADLINE = 4  # D, steps


@dataclass(frozen=True)
class OverheadJob(Agreed):
    """What all processes of a job have to agree on."""

    audit_rate: int  # the floor of q; 0: nobody checks
    num_steps: int
    checkpoint_every: int
    seed: int
    quick: bool
    device_class: str  # of all peers: they run on one machine
    manifest: str  # digest of the corpus, hexadecimal

    def config(self) -> TrainConfig:
        """What is trained."""
        base = tiny_llama(seed=self.seed)
        return TrainConfig(
            model=replace(base.model, **(QUICK if self.quick else MODEL)),
            optimizer=replace(base.optimizer, total_steps=self.num_steps, warmup_steps=1),
            data=DataConfig(rows_per_unit=ROWS, units_per_step=UNITS, seed=self.seed),
            num_steps=self.num_steps,
        )

    def papers(self) -> Papers:
        """Who signs what."""
        return stage_papers(
            self.config(),
            Digest(bytes.fromhex(self.manifest)),
            *PEERS,
            stages=STAGES,
            chunks=CHUNKS,
            checkpoint_every=self.checkpoint_every,
            audit=self._audit(),
            device_class=self.device_class,
        )

    def _audit(self) -> AuditSpec | None:
        """As a job file's defaults, but that nobody from outside repeats reports."""
        if not self.audit_rate:
            return None
        return audit_spec(
            floor=self.audit_rate,
            sums=SUMS_DRAWN,
            margin=MILLION * 5 // 4,
            detection=MILLION * 99 // 100,
            deadline=DEADLINE,
            thresholds=shipped_calibration().digest(),
            price=PricePerPflop(MILLION),
            budget=BaseUnits(50 * MILLION),
        )


if __name__ == "__main__":
    main(lambda folder: OverheadJob.read(folder).papers())
