"""A provider leaves a running job, and its poster opens the model; real processes.

One stack, a job of two stages with two peers each. What is told is read from the logs; what is
paid, from the market; the model, from the folder that `tallystick job download` writes.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.terms.ids import JobId, StageIndex
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import decode_signed, expect
from market.domain.sizes import job_cost
from tests.support.stack import Stack, stack
from training.config import slices_of, train_config
from training.stages.stage import Stage
from training.strategies.state_files import StageState

PROVIDERS = ("ann", "bob", "cem", "dan")
STEPS = 16
JOB: dict[str, Any] = {
    "steps": STEPS, "stages": 2, "peers_per_stage": 2, "units_per_step": 8, "price_ceiling": 2000,
}  # fmt: skip
ALLOWED = 1e-4  # of any logit
OVER = ("finished", "closed")


def stage_of(running: Stack, name: str, job: JobId) -> int:
    """Where a provider's peer works."""
    return int(running.lines(running.peer_log(name, job), "seal_applied")[-1]["stage"])


def one_of_each_stage(running: Stack, job: JobId) -> list[str]:
    """A provider of the first stage, and one of the second."""
    of_stage = {stage_of(running, name, job): name for name in PROVIDERS}
    return [name for _, name in sorted(of_stage.items())]


async def downloaded(running: Stack, job: JobId) -> Path:
    """The folder that the command writes; it waits for the members' weights."""
    folder = running.folder / "model"
    words = ("tallystick", "job", "download", job.hex(), "--to", str(folder))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *words, "--market", running.client.url),
        env=running.environment("download"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert f"the model after step {STEPS}" in said.decode()
    return folder


def logits_of_the_folder(folder: Path, tokens_RT: Tensor) -> Tensor:
    """What `transformers` makes of it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits_RTV: Tensor = model(tokens_RT).logits
    return logits_RTV


def logits_of_the_swarm(running: Stack, job: JobId, spec: JobSpec, tokens_RT: Tensor) -> Tensor:
    """What the states that a peer of each stage ended with make of it, one after the other."""
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    passed = tokens_RT
    slices = slices_of(config.model, spec.batch.layer_ends)
    for piece, name in zip(slices, one_of_each_stage(running, job), strict=True):
        stage = Stage(config.model, piece, config.optimizer)
        [checkpoints] = running.lease_folder(name, job).glob("groups/*/checkpoints")
        assert StageState(StageIndex(0), stage, 1).restore(checkpoints) == STEPS
        with torch.no_grad():
            passed = stage._model(passed)
    return passed


@pytest.mark.nightly  # more than a minute
@pytest.mark.timeout(300)
async def test_drain__agent_is_terminated_in_a_job__no_work_is_lost_and_the_model_is_whole(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    async with stack(tmp_path, forked=True) as running:
        for name in PROVIDERS:
            running.start_provider(name, ask="1000")
        job = (await running.submit(**JOB)).job
        await running.wait_line(running.coordinator_log(job), "seal_stored", step=2, within=120)
        log, leaver = running.coordinator_log(job), running.providers["ann"]

        await leaver.stop(signal.SIGTERM, grace=40.0)
        step_then = running.lines(log, "seal_stored")[-1]["step"]
        view = await running.until(job, lambda v: v.state in OVER, within=90)

        assert leaver.exit_status == 0
        assert running.lines(running.peer_log("ann", job), "left")
        assert step_then < STEPS, "the job was over when she left"
        assert not running.lines(log, "reopened") and not running.lines(log, "round_void")
        spec = expect(decode_signed(view.signed), JobSpec).message
        assert view.earned == pytest.approx(job_cost(spec, spec.price_ceiling), abs=len(PROVIDERS))
        assert [lease.state for lease in view.leases] == ["ended"] * len(PROVIDERS)

        tokens_RT = torch.arange(96).reshape(3, 32) % spec.model.vocab_size
        ours_RTV = logits_of_the_swarm(running, job, spec, tokens_RT)
        theirs_RTV = logits_of_the_folder(await downloaded(running, job), tokens_RT)
        assert float((ours_RTV - theirs_RTV).abs().max()) <= ALLOWED
