"""Do all benchmarks run at all?

    python -m bench --quick         the quick form of each that may run here, one after the other
    python -m bench NAME [...]      one of them, as `python -m bench.NAME [...]`

`bench.torchft_diloco` is not among them: it needs torchft, which no extra installs.
Prints seconds and ok or failed of each, and the tail of what a failed one said; exits with 1 then.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from bench.measuring import ROOT

BENCHMARKS = (
    "attacks", "audit_overhead", "averaging", "calibration", "calibration_local",
    "coordinator_scale", "data_prepare", "families", "goodput", "home_links", "large_models",
    "local_detection", "local_residuals", "local_steps", "model_throughput", "rebalancing",
    "round_scale", "stage_throughput", "swarm_efficiency", "transport",
)  # fmt: skip
NEED_ROOT = ("home_links",)  # for network namespaces
SECONDS = 900  # of one; each has a shorter limit of its own
TAIL = 30  # lines


def runs(name: str) -> bool:
    """Run one quick form in a process, and a session, of its own; tell how it went."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", f"bench.{name}", "--quick"],
            stdout=said, stderr=said, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)  # it cleans up
            process.wait()
            raise
        said.seek(0)
        tail = said.read().splitlines()[-TAIL:]
    is_ok = process.returncode == 0
    seconds = time.monotonic() - began
    print(f"{name:20} {seconds:6.0f} s  {'ok' if is_ok else 'FAILED'}", flush=True)
    if not is_ok:
        print(*tail, sep="\n", flush=True)
    return is_ok


def main() -> int:
    """All or one; returns the exit status."""
    words = sys.argv[1:]
    if words == ["--quick"]:
        able = [name for name in BENCHMARKS if os.geteuid() == 0 or name not in NEED_ROOT]
        return 0 if all([runs(name) for name in able]) else 1
    if not words or words[0] not in BENCHMARKS:
        print(__doc__, "Benchmarks: " + ", ".join(BENCHMARKS), sep="\n")
        return 0 if words in ([], ["--help"]) else 2
    sys.argv = words
    runpy.run_module(f"bench.{words[0]}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
