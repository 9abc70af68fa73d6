"""The weights of a job that runs: downloaded, opened, gone on with; and a peer that dies meanwhile.

A peer stops itself where it begins to upload, is killed there, and its agent starts it again: the
upload is made up for, losses are those of a plain run, and all of the job is done and paid.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import NotFound
from tests.support.patience import patience
from tests.support.stack import kill_and_see, plain_curve, said, stack

STEPS, EVERY, TAKEN = 120, 8, 16
JOB: dict[str, Any] = {"steps": STEPS, "checkpoint_every": 4, "publish_every": EVERY, "budget": 50}


@pytest.mark.nightly
@pytest.mark.timeout(400)
async def test_publish_every__peer_is_killed_as_it_uploads__another_job_starts_from_that_step(
    tmp_path: Path,
) -> None:
    from transformers import AutoModelForCausalLM  # slow to import

    async with stack(tmp_path, forked=True) as running:
        running.start_provider("ann", slowdown=20.0)
        submitted = await running.submit(**JOB)
        first = submitted.job
        async with asyncio.timeout(patience(60)):
            while not list(tmp_path.glob("ann/leases/*/lease.json")):
                await asyncio.sleep(0.02)
        failpoints = running.lease_folder("ann", first) / "failpoints-peer"
        failpoints.write_text(f"stop:publishing:{TAKEN}")
        log = running.peer_log("ann", first)
        await running.wait_line(log, "failpoint", step=TAKEN)
        await kill_and_see(await running.peer_process("ann"))
        await running.wait_line(log, "weights_uploaded", step=TAKEN)

        running.start_provider("bob")
        at = ("--market", running.client.url, "--step", str(TAKEN))
        model = tmp_path / "model"
        words = ("job", "download", first.hex(), "--to", str(model), *at)
        assert (await asyncio.to_thread(said, running, *words))["step"] == TAKEN
        assert (await running.job(first)).progress.step < STEPS
        with pytest.raises(NotFound, match=f"after step 3 .*after each {EVERY} steps"):
            await running.submit(model={"job": f"{first.hex()}@3"})
        second = (await running.submit(steps=2, model={"job": f"{first.hex()}@{TAKEN}"})).job
        assert (await running.job(first)).progress.step < STEPS
        await running.settled(second, within=120)
        whole = await running.settled(first, within=200)

        losses = [each.loss_millionths / 1e6 for each in whole.reports]
        plain = await plain_curve(submitted, tmp_path)
        assert max(abs(a - b) for a, b in zip(losses, plain, strict=True)) < 1e-4
        begun = (await running.job(second)).reports[0].loss_millionths / 1e6
        assert abs(begun - losses[TAKEN]) < (losses[0] - losses[TAKEN]) / 4
        assert (whole.outcome, len(losses)) == ("finished", STEPS)
        assert whole.claimed == whole.vested == whole.earned
        assert whole.unpublished == ()
    AutoModelForCausalLM.from_pretrained(model)
