"""A checked job over real processes: real beacons, real replays, and a peer that lies.

Everything is drawn, so that the test does not depend on luck. The lazy peer sends results of the
step before for some of its units; two strangers find it, and it loses what waits. The audit file of
the job verifies.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.money_story import account_of
from tests.support.stack import stack, verified

JOB: dict[str, Any] = {
    "checking": "on", "audit_rate": 1.0, "sum_audit_rate": 0.5, "repeat_rate": 0.0, "steps": 8,
    "peers_per_stage": 3, "units_per_step": 6, "budget": 40, "vesting_window": 2,
}  # fmt: skip


@pytest.mark.timeout(300)
async def test_checked__one_peer_is_lazy__is_convicted_and_honest_ones_are_paid(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True) as running:
        for name in ("ann", "bob", "cem"):
            running.start_provider(name, lie="stale:from=2" if name == "ann" else "")
        job = (await running.submit(**JOB)).job
        await running.until(job, lambda shown: shown.earned > 0, within=120)
        logs = {name: running.peer_log(name, job) for name in ("ann", "bob", "cem")}
        view = await running.settled(job, within=240)
        work = await running.work(job)

        lazy, *fair = (account_of(running, name) for name in ("ann", "bob", "cem"))
        await running.wait_line(logs["ann"], "too_late")  # it is turned away
        liar = running.peer_of("ann", job).hex()
        audits = {
            name: [line for line in running.lines(logs[name], "audited") if line["step"] > 1]
            for name in ("bob", "cem")
        }
        for found in audits.values():  # whom a beacon lets audit what is luck
            assert "mismatch" in {line["verdict"] for line in found}
            # What the lazy peer alone had is gone once it is turned away: "missing".
            assert {line["verdict"] for line in found if line["peer"] != liar} <= {"match"}
        assert any(line["verdict"] == "match" for found in audits.values() for line in found)
        assert not any(running.lines(log, "kept_too_long") for log in logs.values())
        assert work.forfeited[lazy] > 0
        assert all(work.pay[account].vested > work.pay[lazy].vested for account in fair)
        assert view.claimed == sum(pay.vested for pay in work.pay.values()) < view.earned
        assert (await verified(running, job))["verdict"] == "anchored"
