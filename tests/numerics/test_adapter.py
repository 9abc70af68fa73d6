"""Is an adapter trained by peers what `peft` trains beside the same model, and does it open there?

The other side is `transformers` with `peft`, torch's AdamW and one loop, of which no line is ours.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from contracts.terms.errors import Refused
from contracts.terms.ids import Digest
from contracts.terms.messages import AdapterSpec
from tallystick.gym.registry import MODULE, behaviour_of
from tallystick.sdk.job_spec import start_of
from tests.numerics.families import rows_for
from tests.numerics.loop import items_of, rows_of, synthetic_corpus
from tests.numerics.plain import adamw, greatest_difference, rate, tokens_of
from tests.numerics.plain_local import Plain
from tests.numerics.test_folder import saved
from tests.numerics.test_local_swarm import LOCAL, PEERS, weights_roots
from tests.numerics.test_local_swarm import config_of as local_config
from tests.numerics.with_peft import adapted
from tests.support.corpora import Corpus
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.swarm_job import Line, MemorySwarm
from training.config import TrainConfig, slices_of, whole_model
from training.models import starting
from training.models.adapters import PREFIX, Merged, write_adapter
from training.models.folder import read_folder, write_folder
from training.models.parameters import parameter_shapes
from training.models.sources import FileSource
from training.models.weights import Weights, decode_weights
from training.recipes import micro
from verification.auditing.rerun import rerun

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
STEPS, STAGES = 4, 2
PART_BYTES = 10_000  # of the base: each stage fetches some
ALLOWED = 1e-4  # of a step's loss, and of any logit
CORPUS = synthetic_corpus()
ADAPTER = AdapterSpec(
    rank=4,
    alpha=8,
    targets=("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
)


@dataclass
class Job:
    """An adapter of a small model that `transformers` made."""

    base: Path
    config: TrainConfig
    swarm: MemorySwarm
    blobs: dict[Digest, bytes]  # where its peers fetch; the parts of the base and their index last

    @property
    def model(self) -> Any:
        """The base, opened by `transformers`."""
        return AutoModelForCausalLM.from_pretrained(self.base)

    def losses(self) -> list[float]:
        """Of all steps, nats a token."""
        return [loss / 1e6 for _, loss in sorted(self.swarm.losses().items())]

    def trained(self) -> Weights:
        """The adapters of all stages, out of checkpoints of the last step."""
        found: dict[str, Any] = {}
        stages = slices_of(self.config.model, self.swarm.papers.spec.message.batch.layer_ends)
        for number, part in enumerate(stages):
            name = self.swarm.mates(number)[0]
            newest = max((self.swarm.folder / name).rglob("step-*.safetensors"))
            shapes = parameter_shapes(self.config.model, part)
            found |= decode_weights(FileSource(newest), shapes, what=name)
        return found


def job_of(
    folder: Path,
    config: TrainConfig,
    make: Callable[..., MemorySwarm],
    adapter: AdapterSpec = ADAPTER,
    *,
    tied: bool = False,
) -> Job:
    """That trains an adapter as `config` says, in the swarm that `make` makes."""
    saved(folder / "base", tie_word_embeddings=tied)
    read = read_folder(folder / "base")
    config = replace(
        config,
        model=replace(read.config, adapter=adapter),
        optimizer=replace(config.optimizer, learning_rate=0.02, warmup_steps=2),
    )
    start = start_of(read, part_bytes=PART_BYTES)
    parts = {name: start.fetch(name) for name in (*start.index.parts, start.index.digest())}
    blobs = {**CORPUS.blobs, **parts}
    swarm = make(config, Corpus(CORPUS.manifest, blobs), weights=start.index.digest())
    return Job(folder / "base", config, swarm, blobs)


def unchecked(folder: Path, *names: str, **said: Any) -> Callable[..., MemorySwarm]:
    """Of these peers; `said` as in `make_papers`."""

    def make(config: TrainConfig, corpus: Corpus, weights: Digest) -> MemorySwarm:
        values: dict[str, Any] = {"checkpoint_every": 1, "weights": weights} | said
        papers = stage_papers(config, corpus.manifest.digest(), *names, **values)
        return stage_swarm(folder, papers, corpus)

    return make


def checked(folder: Path, *names: str, **said: Any) -> Callable[..., MemorySwarm]:
    """Everything is drawn, and replayed by what the shipped table says."""

    def make(config: TrainConfig, corpus: Corpus, weights: Digest) -> MemorySwarm:
        outside = ("out", "oda")
        return evidence_swarm(
            folder, config, corpus, *names, outside=outside, weights=weights, **said
        )

    return make


def finished(job: Job) -> Job:
    """From its first to its last seal."""
    torch.set_num_threads(1)
    asyncio.run(job.swarm.run())
    return job


class Theirs:
    """The same adapter in `peft`, at the same first values."""

    def __init__(self, job: Job) -> None:
        self.config = job.config
        self.model, self.trained = adapted(job.model, job.config.model)
        shapes = parameter_shapes(job.config.model, whole_model(job.config.model))
        assert self.trained.keys() == {PREFIX + name for name in shapes}

    def losses(self) -> list[float]:
        """Of each step of one full batch, before its update."""
        config, rows = self.config, rows_of(self.config, CORPUS)
        optimizer, losses = adamw(config.optimizer, self.trained), []
        for step in range(1, config.num_steps + 1):
            batch = tokens_of(rows, items_of(config, step))
            batch_BT = batch.view(-1, config.model.sequence_length + 1)
            for group in optimizer.param_groups:
                group["lr"] = rate(config.optimizer, step)
            logits_BTV = self.model(batch_BT[:, :-1]).logits
            loss = functional.cross_entropy(logits_BTV.flatten(0, 1), batch_BT[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.trained.values(), config.optimizer.clip_norm)
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    def logits(self, tokens_RT: Tensor) -> Tensor:
        """Of these tokens."""
        with torch.no_grad():
            logits_RTV: Tensor = self.model(tokens_RT).logits
        return logits_RTV


@pytest.mark.parametrize(
    ("tied", "adapter"),
    [(True, ADAPTER), (False, AdapterSpec(rank=2, alpha=3, targets=("q_proj", "v_proj")))],
)
def test_adapter__two_stages_of_peers__has_the_losses_of_peft_and_opens_there(
    tmp_path: Path, tied: bool, adapter: AdapterSpec
) -> None:
    make = unchecked(tmp_path, *"abcd", stages=STAGES)
    job = finished(job_of(tmp_path, micro(num_steps=STEPS), make, adapter, tied=tied))
    theirs = Theirs(job)

    reference = theirs.losses()
    assert greatest_difference(job.losses(), reference) < ALLOWED
    assert all(len(roots) == 1 for roots in job.swarm.state_roots())
    trained, base = job.trained(), read_folder(job.base)
    write_adapter(tmp_path / "adapter", job.config.model, trained, str(job.base))
    write_folder(
        tmp_path / "merged", base.config, Merged(job.config.model, base.weights, trained),
        beside=base.beside,
    )  # fmt: skip
    tokens_RT = rows_for(job.config.model)[:, :-1]
    logits_RTV = theirs.logits(tokens_RT)
    with torch.no_grad():
        opened = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
        merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        for model in (opened, merged):
            assert float((model(tokens_RT).logits - logits_RTV).abs().max()) < ALLOWED
        assert float((job.model(tokens_RT).logits - logits_RTV).abs().max()) > 100 * ALLOWED


def test_adapter__local_steps__have_the_weights_of_a_plain_loop(tmp_path: Path) -> None:
    make = unchecked(tmp_path, *PEERS, strategy="local", local=LOCAL)

    job = finished(job_of(tmp_path, local_config(), make))

    frozen = {name: torch.from_numpy(each) for name, each in read_folder(job.base).weights.items()}
    spec, rows = job.swarm.papers.spec.message, rows_of(job.config, CORPUS)
    plain = Plain(spec, rows, job.swarm.merged(), frozen)
    assert weights_roots(job.swarm) == {plain.root()}
    assert job.losses()[-1] < job.losses()[0]


@pytest.mark.nightly
def test_adapter__checked_local_steps__every_claim_is_replayed_and_matches(tmp_path: Path) -> None:
    make = checked(tmp_path, *PEERS, strategy="local", local=LOCAL, gradient_codec="seeded4")

    job = finished(job_of(tmp_path, local_config(), make))

    docket, reports = job.swarm.docket(), job.swarm.claims("report")
    assert docket.is_clear and not docket.convicts
    assert {each.findings.verdict for each in job.swarm.reports()} == {"match"}
    assert {claim.digest() for claim in job.swarm.claims()} <= {each.subject for each in reports}


def test_adapter__a_scaled_gradient__is_convicted_alone_and_run_again_beside_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", MODULE)
    make = checked(tmp_path, "ann", "bob", "cem", "dan")
    job = job_of(tmp_path, micro(num_steps=STEPS), make)
    liar = job.swarm.session_of("ann").peer
    job.swarm.behaviours["ann"] = behaviour_of("scaled:from=2", job.swarm.papers.spec.message.rules)

    finished(job)

    assert set(job.swarm.docket().convicts) == {liar}
    bundles = bundles_in(tmp_path)
    start = start_of(read_folder(job.base), part_bytes=PART_BYTES)
    assert asyncio.run(rerun(bundles[0], start=start)).verdict == "mismatch"
    with pytest.raises(Refused, match=r"trains an adapter: .*--start"):
        asyncio.run(rerun(bundles[0]))


def test_adapter__base_differs_from_its_digest__is_said_and_the_job_begins_once_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_FROZEN", {})  # of a test before
    job = job_of(tmp_path, micro(num_steps=STEPS), unchecked(tmp_path, "ann"))
    blobs, name = job.blobs, [*job.blobs][-2]
    right, said = blobs[name], []

    def watch(peer: str, line: Line) -> None:
        if peer == "ann" and line["event"] == "waits" and name.hex() in line["reason"]:
            said.append(line["reason"])
            blobs[name] = right

    job.swarm.watch = watch
    blobs[name] = bytes(len(right))

    finished(job)

    assert said == [f"the reference item was not done: blob {name.hex()} has other bytes"]
    assert greatest_difference(job.losses(), Theirs(job).losses()) < ALLOWED
