"""How rounds are cut into pieces, by time and by the jobs that a piece has explained."""

from contracts.terms.ids import JobId
from market.service.pace import Pace
from market.service.ports import Place

JOBS = [JobId(bytes([number]) * 32) for number in range(5)]


def test_pace__time_runs_out__next_round_begins_where_it_stopped() -> None:
    clock = iter(range(100))
    pace = Pace(seconds=2.5, monotonic=lambda: next(clock))
    seen = []

    for _ in range(3):
        with pace.round():
            seen.append([JOBS.index(job) for job in pace.turns(JOBS, key=lambda job: job)])

    assert seen == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


def test_pace__no_time_to_explain_all__each_is_told_once_before_one_is_told_again() -> None:
    clock = iter(range(100))
    pace = Pace(explaining_seconds=2, monotonic=lambda: next(clock))
    told = []

    for _ in range(5):
        with pace.round():
            for number, job in enumerate(JOBS):
                if pace.may_explain(job):
                    with pace.explaining(job):
                        told.append(number)

    assert told == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_pace__no_time_to_explain_a_page__its_others_are_told_when_it_is_read_again() -> None:
    clock = iter(range(100))
    pace = Pace(explaining_seconds=2, monotonic=lambda: next(clock))
    told = []

    for _ in range(2):
        for behind, page in ((None, JOBS[:4]), (Place(0, (JOBS[3],)), JOBS[4:])):
            pace.behind = behind
            with pace.round():
                for job in page:
                    if pace.may_explain(job):
                        with pace.explaining(job):
                            told.append(JOBS.index(job))
        pace.behind = None

    assert told == [0, 1, 4, 2, 3]
