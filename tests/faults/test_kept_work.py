"""Work of sealed rounds: it is here while somebody may be drawn, and gone when nobody can be.

What stays within a bound and what goes first is in `tests/unit/training/worker/test_keeping.py`;
that auditors find what they need, in `test_missing_data.py`.
"""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Unavailable
from tests.support.dockets import audit_spec
from tests.support.fakes.counting import CountingState
from tests.support.swarm_job import MemorySwarm, make_papers

NAMES = ("ann", "bob", "cem", "dan")


def swarm_of(folder: Path, **rules: Any) -> MemorySwarm:
    return MemorySwarm(make_papers(*NAMES, stages=2, steps=4, **rules), folder)


def kept_by(folder: Path) -> list[Path]:
    """Files of sealed rounds that a worker has."""
    return [*folder.glob("groups/*/weights/*"), *folder.rglob("*.bin")]


def evidence_in(folder: Path) -> list[Path]:
    """The same, without the newest buckets and pay, which are no evidence."""
    own = kept_by(folder)
    return [path for path in own if "buckets" not in path.parts and path.stem != "pay"]


async def test_job__everything_is_drawn__work_stays_until_its_draws_settle_and_goes_at_the_end(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, audit=audit_spec(deadline=4))

    await swarm.run()

    for name in NAMES:
        told = swarm.lines("work_kept", of=name)
        assert max(line["bytes"] for line in told) > 0 and told[-1]["steps"] == 0
        assert not evidence_in(tmp_path / name)


async def test_job__nobody_is_drawn__nothing_stays_and_nothing_is_told(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path)

    await swarm.run()

    assert not swarm.lines("work_kept")
    for name in NAMES:
        assert not [*(tmp_path / name).glob("groups/*/weights/*")]
        assert not evidence_in(tmp_path / name)


async def test_job__weights_cannot_be_written__told_and_others_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CountingState.save_weights

    def limited(state: CountingState, file: Path, roots: Any) -> None:
        if file.is_relative_to(tmp_path / "bob"):
            raise Unavailable("disk full")
        write(state, file, roots)

    monkeypatch.setattr(CountingState, "save_weights", limited)
    swarm = swarm_of(tmp_path, audit=audit_spec(deadline=4))

    await swarm.run()

    assert swarm.lines("weights_not_kept", of="bob")
    assert swarm.seals()[-1].last and not swarm.docket().convicts
