"""One process of `bench.torchft_diloco`: `python -m bench.torchft_diloco_process ROLE FOLDER`.

Of torchft: a lighthouse, or one replica group of one process. Of ours: the coordinator or a peer of
a real job (`tests.support.swarm_process`). Both train the job of `TorchftJob.papers`.
"""

import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from bench.local_steps import Run, config_of
from bench.measuring import Agreed
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LocalSpec, ShardCodecName
from tests.numerics.plain import adamw, rate
from tests.support.fakes.blobs import FolderBlobs
from tests.support.stage_swarm import stage_papers
from tests.support.swarm_job import COORDINATOR, Papers
from tests.support.swarm_process import AddressFile
from tests.support.swarm_process import main as be_of_a_swarm
from training.config import train_config, whole_model
from training.coordinator import router
from training.data.loading import corpus_rows
from training.models.decoder import StageModel
from training.models.initial import initial_weights
from training.stages.exact import millionths
from training.stages.stage import rows_tensor
from training.stages.torch_free import VALIDATION_ROWS
from training.strategies.local.inner import REWARM_STEPS
from training.telling import JsonLines, Tell

REPLICAS = 4
PEERS = tuple(f"peer-{number}" for number in range(REPLICAS))
INNER_STEPS, ROWS = 50, 4
APPLIED = ("seal_applied", "outer_step")  # a peer of ours, a replica of torchft
ITEM_SECONDS = 600.0
"""Deadline of an item. A peer that was measured while others slept shares its core in a round."""


@dataclass(frozen=True)
class TorchftJob(Agreed):
    """What all processes have to agree on."""

    system: str  # torchft or ours
    codec: ShardCodecName
    seed: int
    rounds: int
    manifest: str  # digest of the corpus, hexadecimal

    def papers(self) -> Papers:
        """Model, data and schedule of `bench.local_steps`; an item is what a replica does a round.

        No audits; all four claims make an update.
        """
        base = config_of(Run("local", INNER_STEPS, steps=self.rounds * INNER_STEPS, seed=self.seed))
        config = replace(
            base,
            data=replace(base.data, units_per_step=REPLICAS, rows_per_unit=ROWS * INNER_STEPS),
            num_steps=self.rounds,
        )
        local = LocalSpec(
            inner_steps=INNER_STEPS,
            segments=1,
            rewarm_steps=REWARM_STEPS,
            outer_rate=10**6,
            outer_momentum=0,
            round_time=600_000,
            quorum=REPLICAS,
        )
        return stage_papers(
            config,
            Digest(bytes.fromhex(self.manifest)),
            *PEERS,
            strategy="local",
            local=local,
            gradient_codec=self.codec,
            checkpoint_every=10,
        )


def be_lighthouse(address: AddressFile) -> None:
    """Tell torchft's managers of each other, until the process is killed."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS)
    address.announce(f"http://127.0.0.1:{server.address().rpartition(':')[2]}")
    signal.pause()


def be_replica(number: int, folder: Path, tell: Tell) -> None:
    """Train one replica under torchft's DiLoCo; then evaluate the weights that all have."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    torch.set_num_threads(1)
    spec = TorchftJob.read(folder).papers().spec.message
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    rows = corpus_rows(spec, FolderBlobs(folder / "blobs"))
    model = StageModel(config.model, whole_model(config.model))
    initial = initial_weights(config.model, whole_model(config.model))
    model.load_state_dict(initial, assign=True)  # in place of those on the meta device
    model.requires_grad_()
    inner = adamw(config.optimizer, dict(model.named_parameters()))
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=REPLICAS,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=(folder / "address").read_text(),
        replica_id=str(number),
        hostname="127.0.0.1",
        init_sync=False,  # all start from equal weights
    )
    step = 0
    with DiLoCo(manager, [model], inner, outer, sync_every=INNER_STEPS):
        for round in range(config.num_steps):
            item = ItemNumber(round * REPLICAS + number)
            for rows_RT in rows_tensor(rows.load(item)).split(ROWS):
                step += 1
                for group in inner.param_groups:
                    group["lr"] = rate(config.optimizer, step)
                inner.zero_grad()
                _loss(model, rows_RT).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
                inner.step()
            if manager.current_step() != round + 1 or manager.num_participants() != REPLICAS:
                raise RuntimeError(f"round {round + 1} is not of all replicas")
            tell(APPLIED[1], step=round + 1)
    with torch.no_grad():
        loss = _loss(model, rows_tensor(rows.validation_rows(VALIDATION_ROWS)))
    tell("validated", step=config.num_steps, loss=millionths(loss))
    manager.shutdown()


def _loss(model: StageModel, rows_RT: torch.Tensor) -> torch.Tensor:
    logits_RTV = model(rows_RT[:, :-1])
    return functional.cross_entropy(logits_RTV.flatten(0, 1), rows_RT[:, 1:].flatten())


def main() -> None:
    """Be what the job says."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    job = TorchftJob.read(folder)
    if job.system == "ours":
        router.SHORTEST = ITEM_SECONDS
        be_of_a_swarm(lambda _folder: job.papers())
    elif role == COORDINATOR:
        be_lighthouse(AddressFile(folder))
    else:
        with (folder / "log" / f"{role}.jsonl").open("a") as stream:
            be_replica(PEERS.index(role), folder, JsonLines(stream, process=role))


if __name__ == "__main__":
    main()
