"""Failpoints, adversaries and slow machines, for `TALLYSTICK_HOOKS=tallystick.gym.hooks`."""

from pydantic_settings import SettingsConfigDict

from contracts.settings import ProcessSettings
from contracts.terms.messages import RulesSpec
from tallystick.gym.failpoints import FailpointFile
from tallystick.gym.registry import behaviour_of
from tallystick.gym.slowed import slow_down
from training.hooks import Hooks
from training.worker.ports import Behaviour, Compute


class PlayedSettings(ProcessSettings):
    """`TALLYSTICK_PEER_*` variables that only the gym reads."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_PEER_")

    slowdown: float = 1.0
    """How many times slower it computes than it could; see `slowed`."""
    behaviour: str = ""
    """Which adversary it plays; see `registry`. Empty: none."""


def played(rules: RulesSpec) -> Behaviour:
    """The adversary that this process plays."""
    return behaviour_of(PlayedSettings().behaviour, rules)


def slowed(compute: Compute) -> Compute:
    """The arithmetic at the speed of the machine that this process plays."""
    slow_down(compute, PlayedSettings().slowdown)
    return compute


HOOKS = Hooks(tell=FailpointFile, behaviour=played, compute=slowed)
