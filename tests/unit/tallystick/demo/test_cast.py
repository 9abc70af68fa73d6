"""Is the demo's cast as it is announced, and is it the same after an interruption?"""

from pathlib import Path
from typing import get_args

import pytest

from contracts.terms.errors import Refused
from contracts.terms.moments import UnixMillis
from tallystick.demo.cast import (
    ACCUSER,
    LAZY,
    MACHINES,
    Notes,
    choose_victim,
    demo_job,
    load_notes,
    save_notes,
)
from tallystick.sdk.job_file import Strategy


@pytest.mark.parametrize("of_lazy", range(3))
@pytest.mark.parametrize("of_accuser", range(3))
def test_choose_victim__wherever_the_liars_are__is_honest_and_not_beside_both(
    of_lazy: int, of_accuser: int
) -> None:
    stages = {each.name: number % 3 for number, each in enumerate(MACHINES)}
    stages |= {LAZY.name: of_lazy, ACCUSER.name: of_accuser}

    victim = choose_victim(stages)

    assert not victim.behaviour
    assert stages[victim.name] not in (of_lazy, of_accuser)


def test_demo_job__either_strategy__is_one_with_a_place_for_each_of_the_nine() -> None:
    for strategy in get_args(Strategy):
        job = demo_job(strategy, "cpu/x86_64/AVX2/torch-2.13.0")

        assert job.strategy == strategy
        assert job.stages * job.peers_per_stage == len(MACHINES)


def test_notes__saved__are_the_same_when_loaded(tmp_path: Path) -> None:
    notes = Notes(begun_at=UnixMillis(1), late_at=UnixMillis(3))

    save_notes(tmp_path, notes)

    assert load_notes(tmp_path) == notes
    assert load_notes(tmp_path / "nothing here") == Notes()


@pytest.mark.parametrize("text", ["not json", '{"unknown": 1}', "[]"])
def test_load_notes__damaged__is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text(text)

    with pytest.raises(Refused, match=r"notes\.json"):
        load_notes(tmp_path)
