"""Who takes part in the demo, what they train, and what has happened to them so far.

Nine machines of unequal speed; one of them dies part-way, a tenth comes late. An eleventh asks more
than the nine and gets nothing: its ask is what the nine are paid. One of the nine is lazy, one
accuses another falsely; who dies is chosen when all have their stages, where no liar is. Three more
have stake and no work: they may be drawn to audit. The machines are all this one: a slow one is
given a slowdown (`tallystick.gym.hooks`), which changes no number.
`notes.json` in the demo's home says which scenes have been played, so that a demo that was
interrupted goes on with the same cast. Moments in Unix milliseconds.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from contracts.terms.errors import Refused
from contracts.terms.moments import UnixMillis
from tallystick.sdk.job_file import JobFile, Strategy, parse_job_file


@dataclass(frozen=True)
class Machine:
    """A provider: its folder and name, what it asks per PFLOP in tokens, and how slow it is."""

    name: str
    ask: str
    slowdown: float
    behaviour: str = ""  # of `tallystick.gym`, or `lazy`; honest if empty


LIES_FROM = 8  # steps
_SCRIPTS = {2: "lazy", 8: f"accuser_once:from={LIES_FROM}"}
MACHINES = tuple(
    Machine(f"provider-{number}", str(900 + 50 * number), slowdown, _SCRIPTS.get(number, ""))
    for number, slowdown in enumerate((1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0), 1)
)
LAZINESS: Mapping[Strategy, str] = {
    "every_step": f"stale:from={LIES_FROM},share=1/2",
    "local": f"stale_rows:from={LIES_FROM}",
}
LAZY, ACCUSER = MACHINES[1], MACHINES[7]
AUDITORS = ("auditor-1", "auditor-2", "auditor-3")
"""Staked providers outside the job."""
LATE = Machine("provider-10", "1000", 1.0)
OUTBID = Machine("provider-11", "1600", 1.0)
"""Loses the auction and so makes the price; it asks less than the ceiling."""
KILLED_AFTER = 15  # steps
LATE_AFTER = 5  # steps; early: its agent and peer start slowly on a machine where nine compute

_BOTH: Mapping[str, object] = {
    "name": "demo: a small Llama learns Python's standard library",
    "recipe": "tiny_llama",
    "data": "builtin",
    "spares": 1,
    "rows_per_unit": 1,
    "price_ceiling": 2000,
    "deadline": "1h",
    "checking": "on",
    "vesting_window": 5,
    "validate_every": 20,
    "min_stake": 5,
    "commit_timeout": "10s",
    "exchange_timeout": "10s",
}
_JOBS: Mapping[Strategy, Mapping[str, object]] = {
    "every_step": {
        "stages": 3,
        "peers_per_stage": 3,
        "units_per_step": 12,
        "budget": 10,
        "audit_rate": 0.3,
    },
    "local": {
        "strategy": "local",
        "local": {"inner_steps": 5, "round_time": "20s"},
        "peers_per_stage": len(MACHINES),
        "steps": 40,
        "gradient_codec": "seeded4",
        "budget": 60,
        "audit_rate": 0.2,
    },
}


def demo_job(strategy: Strategy, device_class: str) -> JobFile:
    """The job that the demo posts; local steps are checked on machines of this class alone."""
    job = {**_BOTH, **_JOBS[strategy]}
    if strategy == "local":
        job["device_class"] = device_class
    return parse_job_file(job, source="demo")


def choose_victim(stages: Mapping[str, int]) -> Machine:
    """Who dies: an honest one, in a stage with as few liars as there is.

    Args:
        stages: Of everybody who works, by name.
    """
    lies = Counter(stages[each.name] for each in (LAZY, ACCUSER) if each.name in stages)
    honest = [each for each in MACHINES if each.name in stages and not each.behaviour]
    return min(honest, key=lambda each: lies[stages[each.name]])  # of equal ones the first


@dataclass
class Notes:
    """What has happened; None: not yet."""

    begun_at: UnixMillis | None = None  # the first provider was started
    victim: str | None = None  # its name, once it is killed
    killed_at: UnixMillis | None = None
    late_at: UnixMillis | None = None  # the tenth was started
    strategy: Strategy = "every_step"  # of the job

    def fallen(self) -> Machine | None:
        """Who was killed."""
        return next((each for each in MACHINES if each.name == self.victim), None)

    def on_stage(self) -> tuple[Machine, ...]:
        """The machines that run now, or are to run again after an interruption."""
        nine = (machine for machine in MACHINES if machine.name != self.victim)
        return (*nine, LATE) if self.late_at is not None else tuple(nine)


def load_notes(home: Path) -> Notes:
    """The notes of this home; empty ones if there are none.

    Raises:
        Refused: the file is not ours.
    """
    path = home / "notes.json"
    try:
        return Notes(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Notes()
    except (OSError, ValueError, TypeError) as error:
        raise Refused(f"{path} cannot be read: {error}; choose another --home") from error


def save_notes(home: Path, notes: Notes) -> None:
    """Replace the notes, whole or not at all."""
    draft = home / ".notes.json.new"
    draft.write_text(json.dumps(asdict(notes)))
    draft.replace(home / "notes.json")
