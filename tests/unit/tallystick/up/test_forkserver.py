"""What the forkserver imports."""

from importlib.util import find_spec

from tallystick.up.forkserver import PRELOADED

RUN_AS_MAIN = ("tallystick.__main__", "tallystick.provider.peer")


def test_preloaded__every_module__is_there_and_is_not_one_that_runs_as_main() -> None:
    assert [name for name in PRELOADED if find_spec(name) is None] == []
    assert set(PRELOADED).isdisjoint(RUN_AS_MAIN)  # runpy warns of a module that runs twice
