"""The one seam through which tests and demos change what a process does. Empty in production.

`TALLYSTICK_HOOKS` names a module with a value `HOOKS`; nothing is imported where it is not set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from contracts.settings import ProcessSettings
from contracts.terms.errors import WrongConfiguration
from contracts.terms.messages import RulesSpec
from training.telling import Tell
from training.worker.ports import HONEST, Behaviour


@dataclass(frozen=True)
class Hooks:
    """What a process asks before it works; by default it works as it is."""

    tell: Callable[[Tell, Path], Tell] = lambda tell, _failpoints: tell
    """Around its log; the path names the file that holds its failpoints, if it has any."""
    behaviour: Callable[[RulesSpec], Behaviour] = lambda _rules: HONEST
    """Of a peer, in a job of these rules."""


class HookSettings(ProcessSettings):
    """`TALLYSTICK_HOOKS`: a module with `HOOKS`, for tests and demos."""

    hooks: str = ""


def hooks() -> Hooks:
    """What the environment asks for.

    Raises:
        WrongConfiguration: it names no module with hooks.
    """
    if not (name := HookSettings().hooks):
        return Hooks()
    try:
        found = import_module(name).HOOKS
    except (ImportError, AttributeError) as error:
        raise WrongConfiguration(f"TALLYSTICK_HOOKS={name}: no module with HOOKS") from error
    assert isinstance(found, Hooks)
    return found
