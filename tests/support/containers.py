"""A process that is shown the limits of a container: a mount namespace, no privilege needed.

The limits are shown, not enforced: `/sys/fs/cgroup` is a folder of plain files.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

_SHOW = 'mount --bind "$0" /sys/fs/cgroup && exec "$@"'
SMALL = {"memory.max": f"{2 * 2**30}\n", "cpu.max": "50000 100000\n", "pids.max": "max\n"}


def shown(folder: Path, files: Mapping[str, str] = SMALL) -> tuple[str, ...]:
    """The words before a command for which a control group of version 2 has these files."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    prefix = ("unshare", "-U", "--map-root-user", "-m", "sh", "-c", _SHOW, str(folder))
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces with mounts here")
    return prefix
