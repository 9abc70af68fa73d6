"""One process of a job of `bench.home_links`, and what all of them agree on.

They are those of `tests.support.swarm_process`: real transport, disks, journals, stage and audits,
with one folder in place of the market. `python -m bench.home_links_process ROLE FOLDER`, after
`HomeJob.write` into the folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.local_steps import Run, config_of
from bench.measuring import Agreed
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Digest
from contracts.terms.messages import MILLION, AuditSpec, LocalSpec, class_name
from tests.support.dockets import audit_spec
from tests.support.stage_swarm import stage_papers
from tests.support.swarm_job import COORDINATOR, Papers
from tests.support.swarm_process import main
from training.config import TrainConfig
from verification.distances.thresholds import shipped_calibration

OPEN, HIDDEN = ("ann", "bob"), ("cem", "dan")  # who can be dialled; who is behind a router
PEERS = (*OPEN, *HIDDEN)
ROLES = (COORDINATOR, *PEERS)
STAGES = 2  # of every_step
QUICK: Mapping[str, Any] = {"width": 32, "num_layers": 2, "ffn_width": 64}


@dataclass(frozen=True)
class HomeJob(Agreed):
    """What all processes of a job have to agree on."""

    inner_steps: int  # of a peer in a round; 0: every_step
    segments: int  # in which they are done
    overlap: bool
    rounds: int
    rows: int  # of a peer and step
    audit_rate: int  # parts of 1e6
    seed: int
    quick: bool
    device_class: str  # of all peers: they run on one machine
    manifest: str  # digest of the corpus, hexadecimal

    @property
    def name(self) -> str:
        """Of a row."""
        if not self.inner_steps:
            return "every_step, 2 stages"
        return f"local, H = {self.inner_steps}{', overlap' if self.overlap else ''}"

    @property
    def tokens_a_round(self) -> int:
        """Of all peers together."""
        config = self.config()
        units, rows = config.data.units_per_step, config.data.rows_per_unit
        return units * rows * config.model.sequence_length

    @property
    def num_items(self) -> int:
        """Of the job."""
        return self.rounds * self.config().data.units_per_step

    def config(self) -> TrainConfig:
        """What is trained: units of one step, or of all steps of a peer in a round."""
        inner = self.inner_steps or 1
        run = Run("every_step", replicas=len(PEERS), seed=self.seed, steps=self.rounds * inner)
        base = config_of(run)
        return replace(
            base,
            model=replace(base.model, **(QUICK if self.quick else {})),
            data=replace(
                base.data,
                rows_per_unit=inner * self.rows // self.segments,
                units_per_step=base.data.units_per_step * self.segments,
            ),
            num_steps=self.rounds,
        )

    def papers(self) -> Papers:
        """Who signs what; deadlines are patient, chunks as a job file's defaults."""
        how: dict[str, Any] = {"stages": STAGES, "chunks": 2 * len(PEERS) // STAGES}
        if self.inner_steps:
            local = LocalSpec(
                inner_steps=self.inner_steps // self.segments,
                segments=self.segments,
                overlap=self.overlap,
                rewarm_steps=5,
                outer_rate=MILLION,
                outer_momentum=0,
                round_time=60_000,
                quorum=len(PEERS) // 2 + 1,
            )
            how = {"strategy": "local", "local": local, "gradient_codec": "seeded4"}
            how |= {"chunks": 2 * len(PEERS)}
        return stage_papers(
            self.config(),
            Digest(bytes.fromhex(self.manifest)),
            *PEERS,
            checkpoint_every=10,
            audit=self._audit(),
            device_class=self.device_class,
            **how,
        )

    def _audit(self) -> AuditSpec | None:
        """As a job file's defaults, but that nobody from outside repeats reports."""
        if not self.audit_rate:
            return None
        return audit_spec(
            floor=self.audit_rate,
            sums=MILLION // 10,
            margin=MILLION * 5 // 4,
            detection=MILLION * 99 // 100,
            deadline=4,
            thresholds=shipped_calibration().digest(),
            price=PricePerPflop(MILLION),
            budget=BaseUnits(50 * MILLION),
            device_class=class_name(self.device_class) if self.inner_steps else "",
        )


if __name__ == "__main__":
    main(lambda folder: HomeJob.read(folder).papers())
