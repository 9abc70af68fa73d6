"""Does an agent know that its machine slept, and what that cost it?"""

import pytest

from tallystick.provider.background import Clocks, interruption

BEFORE = Clocks(1000.0, 50.0, 90.0)


@pytest.mark.parametrize(
    ("wall", "monotonic", "boot", "told"),
    [
        (9.0, 9.0, 9.0, None),  # much to do
        (77.0, 1.0, 77.0, "this machine was asleep for 76 s"),
        (77.0, 77.0, 77.0, "this agent was stopped for 76 s"),
        (301.0, 1.0, 1.0, "this machine's clock was turned forward by 300 s"),
        (-59.0, 1.0, 1.0, "this machine's clock was turned back by 60 s"),
    ],
)
def test_interruption__clocks_move_apart__says_what_happened(
    wall: float, monotonic: float, boot: float, told: str | None
) -> None:
    after = Clocks(BEFORE.wall + wall, BEFORE.monotonic + monotonic, BEFORE.boot + boot)

    assert interruption(BEFORE, after, 1.0) == told
