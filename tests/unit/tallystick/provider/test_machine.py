"""Do agents on one machine ever offer more of it together than there is?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.provider import machine as machine_module
from tallystick.provider.machine import Machine, Share, claimed, fair
from tallystick.resources import CORE, MACHINE, Limit
from tallystick.up.processes import Identity, Ticks

GIB = 2**30
TOTAL, CORES = 24 * GIB, 2 * CORE
MEMORY, BOTH_CORES = (Limit(MACHINE, TOTAL),), (Limit(MACHINE, CORES),)
BOX = Limit("/box", 2 * GIB)


def idle(pid: int) -> Share:
    return Share(pid, 1, "cpu", 0, 0, None, None)


def settle(agents: list[Share]) -> list[Share]:
    """Each asks in turn, twice: what the first round gives back, the second takes."""
    for _ in range(2):
        for number, each in enumerate(agents):
            if not each.is_at_work:
                others = agents[:number] + agents[number + 1 :]
                agents[number] = claimed(each, others, MEMORY, BOTH_CORES)
            assert sum(each.memory for each in agents) <= TOTAL
            assert sum(each.cores for each in agents) <= CORES
    return agents


@pytest.mark.parametrize(
    ("held", "caps", "shares"),
    [
        (0, [None], [24]),
        (0, [None, None], [12, 12]),
        (0, [2, None, None], [2, 11, 11]),
        (4, [None, 30], [10, 10]),
        (30, [None], [0]),
        (0, [], []),
    ],
)
def test_fair__caps_and_agents_at_work__the_rest_is_shared_equally(
    held: int, caps: list[int | None], shares: list[int]
) -> None:
    assert fair(24, held, caps) == shares


def test_claimed__six_agents_come_one_after_the_other__a_sixth_each_and_never_more_in_all() -> None:
    agents: list[Share] = []
    for pid in range(6):
        agents = settle([*agents, idle(pid)])

    assert [each.memory for each in agents] == [4 * GIB] * 6
    assert sum(each.cores for each in agents) == CORES - CORES % 6


def test_claimed__one_is_at_work__the_others_share_what_its_job_leaves() -> None:
    agents = settle([idle(pid) for pid in range(3)])
    agents[0] = replace(agents[0], memory=2 * GIB, is_at_work=True)

    found = settle(agents)

    assert [each.memory for each in found] == [2 * GIB, 11 * GIB, 11 * GIB]


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ids of processes that live; `Machine` takes its own from the newest."""
    found = set[int]()
    monkeypatch.setattr(machine_module, "identify", lambda _: Identity(max(found), Ticks(1)))
    monkeypatch.setattr(machine_module, "is_alive", lambda who: who.pid in found)
    return found


def test_machine__agent_is_killed__its_share_comes_back(tmp_path: Path, alive: set[int]) -> None:
    def come(pid: int) -> Machine:
        alive.add(pid)
        return Machine(tmp_path, "cpu", memory=MEMORY, cores=BOTH_CORES)

    first = come(1)
    alone = first.offer().memory
    second = come(2)
    too_early = second.offer().memory
    shared = (first.offer().memory, second.offer().memory)
    alive.discard(1)
    after = second.offer().memory

    assert (alone, too_early, shared, after) == (TOTAL, 0, (TOTAL // 2, TOTAL // 2), TOTAL)


def test_machine__two_agents_in_a_container_and_one_beside_it__two_share_what_it_may_use(
    tmp_path: Path, alive: set[int]
) -> None:
    half_a_core = Limit("/box", CORE // 2)

    def come(pid: int, *, memory: Sequence[Limit] = (), cores: Sequence[Limit] = ()) -> Machine:
        alive.add(pid)
        most, all_cores = (*MEMORY, *memory), (*BOTH_CORES, *cores)
        return Machine(tmp_path, "cpu", memory=most, cores=all_cores, speed=1000, cap_cores=CORE)

    beside = come(1)
    beside.offer()
    beside.work(20 * GIB)
    inside = [come(pid, memory=(BOX,), cores=(half_a_core,)) for pid in (2, 3)]
    for _ in range(2):
        shares = [each.offer() for each in inside]

    assert [each.memory for each in shares] == [GIB, GIB]
    assert [each.cores for each in shares] == [CORE // 4, CORE // 4]
    assert inside[0].speed(threads=1) == 500  # of what half a core was measured to do


def test_machine__file_is_damaged_or_of_another_device__shares_are_written_again(
    tmp_path: Path, alive: set[int]
) -> None:
    alive |= {1}
    first = Machine(tmp_path, "cpu", memory=MEMORY, cores=BOTH_CORES)
    first.offer()
    (file,) = tmp_path.glob("*.json")
    file.write_text("[{")
    again = first.offer().memory
    alive.add(2)
    gpu = (
        Machine(tmp_path, "cuda:0", memory=(Limit(MACHINE, GIB),), cores=BOTH_CORES).offer().memory
    )
    first.work(3 * GIB)
    first.close()

    assert (again, gpu, first.share.memory) == (TOTAL, GIB, 3 * GIB)
    assert '"pid": 1,' not in file.read_text()
