"""A job whose validation losses end it: ordered by its file, watched into a folder, audited."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.ids import JobId
from contracts.terms.messages import Validation
from contracts.terms.signatures import Signed
from tests.support.money_story import account_of
from tests.support.stack import MICRO_JOB, said, stack, verified

TEXT = "".join(f"step {i} is sealed, and its seal pays for {i * i} items\n" for i in range(2000))
CHANGED: dict[str, Any] = {
    "passes": 0.2, "validate_every": 5, "stop_early": {"patience": 2, "min_delta": 100},
    "optimizer": {"schedule": "wsd", "decay_ratio": 0.5}, "peers_per_stage": 2,
}  # fmt: skip
DUE = [5, 10, 15]  # of which the first is the best, as none is 100 nats better


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_stop_early__ordered_by_its_file_and_watched__ends_is_paid_and_verified(
    tmp_path: Path,
) -> None:
    file, text, run = tmp_path / "job.yaml", tmp_path / "text.txt", tmp_path / "run"
    text.write_text(TEXT)
    file.write_text(json.dumps(MICRO_JOB | CHANGED | {"data": str(text)}))

    async with stack(tmp_path, forked=True) as running:
        at = ("--market", running.client.url)
        for name in ("ann", "bob"):
            running.start_provider(name)
        plan = await asyncio.to_thread(said, running, "job", "submit", str(file), "--dry-run", *at)
        ordered = await asyncio.to_thread(said, running, "job", "submit", str(file), "--yes", *at)
        job = JobId(bytes.fromhex(ordered["job"]))
        watch = ("job", "watch", job.hex(), "--to", str(run), *at)
        watched = await asyncio.to_thread(said, running, *watch)
        view = await running.settled(job, within=120)
        items = [item async for _, item in running.client.messages(job)]
        work = await running.work(job)

        steps = view.spec["batch"]["steps"]
        assert steps > 2 * DUE[-1] and f"{steps} steps" in plan["dry_run"]["plan"]["length"]
        assert watched["state"] in ("finished", "closed") and view.outcome == "stopped"
        assert view.progress.trained == DUE[-1]
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, DUE[-1] + 1))
        losses = {line["step"]: line["validation_loss"] for line in lines}
        assert [step for step, loss in losses.items() if loss is not None] == DUE
        signed = [item.message for item in items if isinstance(item, Signed)]
        sealed = {each.of: each.loss for each in signed if isinstance(each, Validation)}
        assert sealed == {step: round(losses[step] * 10**6) for step in DUE}
        for name in ("ann", "bob"):
            pay = work.pay[account_of(running, name)]
            assert pay.vested == pay.earned > 0
        assert view.claimed == view.vested == view.earned
        assert (await verified(running, job))["verdict"] == "anchored"
