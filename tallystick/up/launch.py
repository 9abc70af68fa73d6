"""How does a child die with its parent? It asks the kernel, just before it becomes the service.

Run as a script: `python -I -S launch.py PARENT DEATHSIG USER GROUP -- argv...` asks for DEATHSIG
(PR_SET_PDEATHSIG) and then executes argv under the same pid. USER and GROUP are numbers, or -1 to
stay who we are; changing them clears the death signal, so it is set last. The death signal is
bound to the parent's thread: `up` starts its children from the thread that runs its loop until the
end. Only the standard library, and no other module of ours.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
NOTHING_TO_RUN = 127


def die_with(parent: int, death_signal: int) -> None:
    """Be sent `death_signal` when `parent` ends; exit if it has ended already."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended between the fork and the line above
        sys.exit(NOTHING_TO_RUN)


def become(user: int, group: int) -> None:
    """Drop to another user for good; -1 stays."""
    if user < 0:
        return
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)


def find(program: str) -> str:
    """The file that a name means on PATH; a name with a slash, and an unknown one, stay."""
    if os.sep in program:
        return program
    places = (os.path.join(folder, program) for folder in os.get_exec_path())
    return next((place for place in places if os.access(place, os.X_OK)), program)


def main(arguments: list[str]) -> None:
    """Prepare this process and turn it into the service."""
    parent, death_signal, user, group = map(int, arguments[:4])
    argv = arguments[5:]
    program = find(argv[0])  # before dropping: this may import modules that the other cannot read
    become(user, group)
    if death_signal:
        die_with(parent, death_signal)
    try:
        os.execv(program, argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOTHING_TO_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
