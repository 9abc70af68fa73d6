"""A checked job over real processes: real coins, real replays, and a peer that lies.

Everything is drawn, so that the test does not depend on luck. The lazy peer sends results of the
step before for some of its units; two strangers find it, and it loses what waits. The audit file of
the job verifies.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.keys.store import load_or_create_wallet
from contracts.terms.ids import Address, JobId
from tests.support.stack import Stack, stack

JOB: dict[str, Any] = {
    "checking": "on", "audit_rate": 1.0, "sum_audit_rate": 0.5, "repeat_rate": 0.0, "steps": 8,
    "peers_per_stage": 3, "units_per_step": 6, "budget": 40, "vesting_window": 2,
}  # fmt: skip


def told(running: Stack, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """What `tallystick WORDS` says to anybody at this market, when it ends as it should."""
    done = subprocess.run(
        (sys.executable, "-m", "tallystick", *words),
        env=os.environ | running.environment("anyone"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout + done.stderr


def verified(running: Stack, job: JobId) -> str:
    """What `tallystick audit verify` says of the file that `tallystick audit export` writes."""
    file = str(running.folder / "audit.bin")
    told(running, "audit", "export", job.hex(), "--market", running.client.url, "--to", file)
    return told(running, "audit", "verify", file, codes=(0, 10))  # 10: not anchored


def account_of(running: Stack, name: str) -> Address:
    """A provider's wallet."""
    return load_or_create_wallet(running.folder / name / "wallet.json").account


@pytest.mark.timeout(300)
async def test_checked__one_peer_is_lazy__is_convicted_and_honest_ones_are_paid(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True) as running:
        for name in ("ann", "bob", "cem"):
            lie = "stale:from=2" if name == "ann" else ""
            running.variables = {
                "TALLYSTICK_HOOKS": "tallystick.gym.hooks",
                "TALLYSTICK_PEER_BEHAVIOUR": lie,
            }
            running.start_provider(name)
        job = (await running.submit(**JOB)).job
        await running.until(job, lambda shown: shown.earned > 0, within=120)
        logs = {name: running.peer_log(name, job) for name in ("ann", "bob", "cem")}
        view = await running.settled(job, within=240)
        work = await running.work(job)

        lazy, *fair = (account_of(running, name) for name in ("ann", "bob", "cem"))
        await running.wait_line(logs["ann"], "too_late")  # it is turned away
        found = [
            {line["verdict"] for line in running.lines(logs[name], "audited") if line["step"] > 1}
            for name in ("bob", "cem")
        ]
        assert all("mismatch" in each for each in found)  # whom a coin lets audit what is luck
        assert set.union(*found) == {"match", "mismatch"}
        assert work.forfeited[lazy] > 0
        assert all(work.pay[account].vested > work.pay[lazy].vested for account in fair)
        assert view.claimed == sum(pay.vested for pay in work.pay.values()) < view.earned
        assert verified(running, job)
