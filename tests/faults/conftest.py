"""Adversaries may be played in every test of faults."""

import pytest


@pytest.fixture(autouse=True)
def _in_the_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")
