"""One process of the job of `bench.goodput`, and what all of them agree on.

They are those of `tests.support.swarm_process`: real transport, disks, journals and stage, with one
folder in place of the market. `python -m bench.goodput_process ROLE FOLDER`, after
`GoodputJob.write` into the folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.measuring import Agreed
from contracts.terms.ids import Digest
from contracts.terms.messages import LocalSpec
from tests.support.stage_swarm import stage_papers
from tests.support.swarm_job import COORDINATOR, Papers
from tests.support.swarm_process import main
from training.recipes import tiny_llama

STAGES = 2
PEERS = tuple(f"peer-{number}" for number in range(8))
ROLES = (COORDINATOR, *PEERS)
UNITS, ROWS = 16, 4  # of a step; of a unit
STEPS = 10_000  # more than anybody waits for
MODEL: Mapping[str, Any] = {"num_layers": 4}  # else as `tiny_llama`
INNER_STEPS, SEGMENTS = 5, 50  # of local steps: more segments than a round has time for
QUICK: Mapping[str, Any] = {"width": 64, "num_layers": 2, "ffn_width": 128}


@dataclass(frozen=True)
class GoodputJob(Agreed):
    """What all processes of a job have to agree on."""

    seed: int
    quick: bool
    manifest: str  # digest of the corpus, hexadecimal
    round_time: int = 0  # ms, of local steps; 0: every_step

    @property
    def rows(self) -> int:
        """Of a unit."""
        return ROWS * INNER_STEPS if self.round_time else ROWS

    def papers(self) -> Papers:
        """Who signs what; chunks, checkpoints and deadlines are a job file's defaults."""
        base = tiny_llama(seed=self.seed)
        units = len(PEERS) * SEGMENTS if self.round_time else UNITS
        changed: dict[str, Any] = {"stages": STAGES, "chunks": 2 * len(PEERS) // STAGES}
        if self.round_time:
            local = LocalSpec(
                inner_steps=INNER_STEPS,
                segments=SEGMENTS,
                rewarm_steps=5,
                outer_rate=10**6,
                outer_momentum=0,
                round_time=self.round_time,
                quorum=len(PEERS) // 2 + 1,
            )
            changed = {
                "strategy": "local", "local": local, "gradient_codec": "seeded4",
                "chunks": 2 * len(PEERS),
            }  # fmt: skip
        config = replace(
            base,
            model=replace(base.model, **(QUICK if self.quick else MODEL)),
            optimizer=replace(base.optimizer, total_steps=STEPS),
            data=replace(base.data, rows_per_unit=self.rows, units_per_step=units),
            num_steps=STEPS,
        )
        return stage_papers(
            config,
            Digest(bytes.fromhex(self.manifest)),
            *PEERS,
            checkpoint_every=10,
            redo_after=1000,
            **changed,
        )


if __name__ == "__main__":
    main(lambda folder: GoodputJob.read(folder).papers())
