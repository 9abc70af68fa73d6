"""`python -m tests.support.showing FILE exit:N|third|wait|fail`: what a process sees of itself.

`third` exits with 9 twice, and then with 0.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PR_GET_PDEATHSIG = 2


def death_signal() -> int:
    """The signal that the kernel sends when the parent ends; 0: none."""
    number = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value


def main() -> int:
    """Show, and end as told."""
    file, how = Path(sys.argv[1]), sys.argv[2]
    shown = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "is_leader": os.getsid(0) == os.getpid() == os.getpgid(0),
        "death_signal": death_signal(),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # but the folder that is listed
        "umask": os.umask(0o077),
        "terminates": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "input": os.read(0, 1).decode(),
    }
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(shown))
    print("on output", flush=True)
    print("on error", file=sys.stderr, flush=True)
    draft.replace(file)
    if how == "fail":
        raise ValueError("told to fail")
    if how == "wait":
        signal.pause()
    if how == "third":
        return 0 if _count(file.with_suffix(".count")) == 3 else 9
    return int(how.removeprefix("exit:"))


def _count(file: Path) -> int:
    with file.open("a") as marks:
        marks.write("x")
        return marks.tell()


if __name__ == "__main__":
    sys.exit(main())
