"""Is the demo's cast as it is announced, and is it the same after an interruption?"""

from pathlib import Path

import pytest

from contracts.terms.errors import Refused
from contracts.terms.moments import UnixMillis
from tallystick.demo.cast import (
    ACCUSER,
    KILLED_AFTER,
    LATE,
    LATE_AFTER,
    LAZY,
    MACHINES,
    OUTBID,
    Notes,
    choose_victim,
    demo_job,
    load_notes,
    save_notes,
)
from tallystick.gym.registry import plans
from tallystick.sdk.job_file import tokens


def test_demo_job__as_announced__nine_peers_sixty_steps_and_at_most_4096_tokens() -> None:
    job = demo_job()
    config = job.train_config()

    assert job.stages * job.peers_per_stage == len(MACHINES) == 9
    assert job.spares == 1
    assert config.num_steps == 60 > LATE_AFTER > KILLED_AFTER
    assert config.tokens_per_step <= 4096
    assert job.boundary_codec == job.gradient_codec == "none"


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


def test_choose_victim__liars_in_every_stage_that_works__is_an_honest_one_beside_them() -> None:
    assert choose_victim({MACHINES[0].name: 0, LAZY.name: 0, ACCUSER.name: 0}) == MACHINES[0]


def test_machines__two_lie__by_scripts_that_the_gym_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")

    for machine in MACHINES:
        assert len(plans(machine.behaviour)) == (machine in (LAZY, ACCUSER))


def test_outbid__asks_more_than_all_others_and_less_than_the_ceiling() -> None:
    asks = [tokens(machine.ask) for machine in (*MACHINES, LATE)]

    assert max(asks) < tokens(OUTBID.ask) < demo_job().price_ceiling


def test_on_stage__at_first__is_everybody_but_the_late_one() -> None:
    assert Notes().on_stage() == MACHINES


def test_on_stage__after_both_scenes__is_without_the_victim_and_with_the_late_one() -> None:
    notes = Notes(victim=MACHINES[4].name, killed_at=UnixMillis(1), late_at=UnixMillis(2))
    cast = notes.on_stage()

    assert notes.fallen() == MACHINES[4] and MACHINES[4] not in cast
    assert cast[-1] == LATE
    assert len(cast) == 9


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
