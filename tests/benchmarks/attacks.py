"""Which attacks are caught, what do they earn, and what would they cost if nobody looked?

`python -m tests.benchmarks.attacks [--only NAME ...] [--seed N] [--out FILE]` plays the attacks of
docs/protocol.md 8 one after the other on one real market: database, chain, providers and peers are
processes, coins are block hashes, stages are real (the micro recipe). It prints a table and exits
with 1 if an attack does not end as `ATTACKS` says.

Every peer-step and every sum is drawn, and where auditors lie every report is repeated, so that no
luck is involved; what lower rates do follows from `verification.draws.odds` and `schedules`. Two
staked providers audit from outside. Each attack has a wallet of its own, and up to two jobs: with
checking off, for the damage, and on. Beside them, once for each shape of a job, both with everybody
honest.

    lie, ruled   step of the first work, sum or report that was ruled on, and of the seal that did
    earned       by the liar when the job ended, in base units, and what was forfeited; beside it
                 what one earned in the honest run, where it had other units to do. Prices are
                 equal: the ceiling is what everybody asks.
    moved        with checking off: how far the final weights are from those of the honest run, in
                 parts of the way that training went. Honest runs differ from each other by the
                 order of their sums; a lie has to be `ABOVE_NOISE` times as far.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from tests.benchmarks.attacks_cast import ATTACKS, Attack
from tests.benchmarks.attacks_theatre import HEAD, SEED, Result, theatre
from tests.benchmarks.stage_throughput import commit


def named(names: Iterable[str]) -> tuple[Attack, ...]:
    """The attacks of these names, in the order of the table; all of them if none is named."""
    wanted = set(names) or {attack.name for attack in ATTACKS}
    found = tuple(attack for attack in ATTACKS if attack.name in wanted)
    assert {attack.name for attack in found} == wanted, f"unknown: {wanted}"
    return found


async def play(attacks: Sequence[Attack], seed: int, tell: Callable[[str], None]) -> list[Result]:
    """Play them on a market of their own."""
    with tempfile.TemporaryDirectory(prefix="tallystick-attacks-") as folder:
        async with theatre(Path(folder), seed=seed, tell=tell) as opened:
            return [await opened.perform(attack) for attack in attacks]


def report(results: Sequence[Result], seed: int, seconds: float) -> str:
    """The table, and where it was made."""
    about = {
        "seed": seed,
        "commit": commit(),
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seconds": round(seconds),
        "not as expected": [each.attack.name for each in results if each.unmet],
    }
    return "\n".join([HEAD, *(each.row() for each in results), "", json.dumps(about)])


def main() -> int:
    """Play and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(attack.name for attack in ATTACKS)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help=names)
    parser.add_argument("--seed", type=int, default=SEED, help="of model and data")
    parser.add_argument("--out", type=Path, help="write the table there, too")
    options = parser.parse_args()
    unknown = set(options.only) - {attack.name for attack in ATTACKS}
    if unknown:
        parser.error(f"no attack {', '.join(sorted(unknown))}; there are: {names}")

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    began = time.monotonic()
    results = asyncio.run(play(named(options.only), options.seed, tell))
    found = report(results, options.seed, time.monotonic() - began)
    print(found)
    if options.out:
        options.out.write_text(found + "\n")
    return 1 if any(each.unmet for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
