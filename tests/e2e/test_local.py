"""A checked job of local steps, from its file to the offline audit, with a peer that is killed.

The file is `examples/local.yaml` with a smaller model. Everything is drawn, so that the test does
not depend on luck. Work that a round lacks comes in a later one: all that was ordered is trained.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from contracts.terms.ids import JobId
from contracts.terms.messages import class_name
from market.bodies.routes import GET_CONVICTIONS, GET_STEPS
from tests.support.money_story import account_of
from tests.support.stack import ROOT, kill_and_see, said, stack, verified
from training.stages.exact import device_class

NAMES = ("ann", "bob", "cem")
STEPS, INNER, ROWS, TOKENS = 5, 8, 4, 32
CHANGED: dict[str, Any] = {
    "recipe": "micro", "peers_per_stage": 3, "steps": STEPS, "rows_per_unit": ROWS,
    "local": {"inner_steps": INNER, "round_time": "10s"}, "checking": "on", "audit_rate": 1.0,
    "vesting_window": 2, "price_ceiling": 2_000_000, "rate": 100_000,
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_local__ordered_by_its_file_and_a_peer_killed__is_trained_paid_and_verified(
    tmp_path: Path,
) -> None:
    file = tmp_path / "local.yaml"
    own = {"device_class": class_name(device_class(torch.device("cpu")))}
    job_file = yaml.safe_load((ROOT / "examples" / "local.yaml").read_text()) | CHANGED | own
    file.write_text(json.dumps(job_file))

    async with stack(tmp_path, forked=True) as running:
        for name in NAMES:
            running.start_provider(name)
        submit = ("job", "submit", str(file), "--yes", "--market", running.client.url)
        ordered = await asyncio.to_thread(said, running, *submit)
        job = JobId(bytes.fromhex(ordered["job"]))
        await running.until(job, lambda view: view.progress.step >= 2, within=120)
        await kill_and_see(await running.peer_process("bob"))
        view = await running.settled(job, within=120)
        steps = (await running.client.whole(GET_STEPS, job=job)).steps
        work = await running.work(job)

        assert (view.outcome, view.progress.trained) == ("finished", STEPS)
        assert sum(each.tokens for each in steps) == STEPS * 3 * INNER * ROWS * TOKENS
        assert all(each.exchanged for each in steps if each.peers > 1)
        assert (await running.client.whole(GET_CONVICTIONS, job=job)).convictions == ()
        assert sum(each.outcomes.matched for each in steps) >= STEPS
        for name in NAMES:
            pay = work.pay[account_of(running, name)]
            assert pay.vested == pay.earned > 0
        assert view.claimed == view.vested == view.earned
        assert (await verified(running, job))["verdict"] == "anchored"
