"""How fast is the market with ten thousand offers, beside an earlier commit, in one run?

    git worktree add /tmp/before 10704f5
    python -m tests.benchmarks.market_speed --against /tmp/before [--only clearing,settle]

Each measure runs in a process of its own over the checkout's packages (PYTHONPATH), in turns: now,
before, now, before; the ratio is of the medians. Prints a line a measure, and JSON at the end.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.market_speed_process import MEASURES
from tests.benchmarks.measuring import spread

ROOT = Path(__file__).resolve().parents[2]
PROCESS = Path(__file__).with_name("market_speed_process.py")


def measured(checkout: Path, measure: str) -> dict[str, float]:
    """What one run of a measure printed, over the packages of a checkout."""
    done = subprocess.run(
        [sys.executable, str(PROCESS), measure],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(measure: str, before: Path | None, rounds: int) -> dict[str, object]:
    """A measure's figures now and before, name by name, and how many times faster it is now."""
    checkouts = {"now": ROOT} | ({"before": before} if before else {})
    runs: dict[str, list[Mapping[str, float]]] = {name: [] for name in checkouts}
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            runs[name].append(measured(checkout, measure))
    found: dict[str, object] = {}
    for figure in runs["now"][0]:
        spreads = {name: spread([run[figure] for run in of], 4) for name, of in runs.items()}
        line: dict[str, object] = dict(spreads)
        if before:
            line["before / now"] = round(
                spreads["before"]["median"] / max(spreads["now"]["median"], 1e-9), 2
            )
        found[figure] = line
        print(f"{measure} {figure}: {json.dumps(line)}", flush=True)
    return found


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="checkout of an earlier commit")
    parser.add_argument("--only", default=",".join(MEASURES), help="measures, by comma")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    before = asked.against.resolve() if asked.against else None
    print(
        json.dumps({each: compared(each, before, asked.rounds) for each in asked.only.split(",")})
    )


if __name__ == "__main__":
    main()
