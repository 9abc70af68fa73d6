"""`up`, a tiny job and `down` by the commands that a person types, in awkward places.

The folder's path has spaces and more than 130 characters, the environment points at a proxy and at
another Postgres, and the user is who runs the tests or, through a user namespace, one without any
power. Nothing above the folder may change, nothing may be left running.
"""

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.up.processes import RUN_ID, environment_of, running
from tests.support.patience import patience
from tests.support.stack import ROOT

JOB = """\
name: tiny
recipe: micro
steps: 3
budget: 10
price_ceiling: 2000000
deadline: 1h
checking: off
"""

SCRIPT = """\
set -eu
market=http://127.0.0.1
"$PYTHON" -m tallystick up --home "$PLACE/market" --port 0 --detach
port=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["api"])' \
    "$PLACE/market/run/ports.json")
"$PYTHON" -m tallystick provider start --market "$market:$port" --home "$PLACE/provider" \
    --ask 1000000 >"$PLACE/provider.log" 2>&1 &
provider=$!
"$PYTHON" -m tallystick job submit "$PLACE/job.yaml" --market "$market:$port" \
    --wallet "$PLACE/poster.json" --wait --timeout 90
kill -TERM "$provider"
wait "$provider" || true
"$PYTHON" -m tallystick down --home "$PLACE/market"
"""

AS_OURSELVES: tuple[str, ...] = ()
WITHOUT_POWER = ("unshare", "-U", "--map-user=1000", "--map-group=1000")


def _folders_above(place: Path) -> dict[Path, tuple[int, int, int]]:
    stats = {folder: folder.stat() for folder in place.parents}
    return {folder: (s.st_mode, s.st_uid, s.st_gid) for folder, s in stats.items()}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "user",
    [pytest.param(AS_OURSELVES, marks=pytest.mark.chaos), WITHOUT_POWER],
    ids=["ourselves", "uid 1000"],
)
def test_up__awkward_place_and_user__a_job_runs_and_nothing_else_changes(
    user: tuple[str, ...], tmp_path: Path
) -> None:
    if user and shutil.which(user[0]) is None:
        pytest.fail("unshare is part of util-linux and should be here")
    place = tmp_path / ("a long name with spaces " * 4).strip() / ("and another one " * 4).strip()
    place.mkdir(parents=True)
    assert len(str(place)) > 130
    (place / "job.yaml").write_text(JOB)
    run_id = secrets.token_hex(16)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TALLY")},
        "PYTHON": sys.executable,
        "PLACE": str(place),
        "PYTHONPATH": str(ROOT),
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "PGPORT": "1",
        "PGHOST": "nowhere.invalid",
        "TALLYSTICK_HOME": str(place / "person"),
        RUN_ID: run_id,
    }
    before = _folders_above(place)

    done = subprocess.run(
        [*user, "bash", "-c", SCRIPT],
        env=environment,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=patience(180),
    )

    log = place / "provider.log"
    words = log.read_text()[-2000:] if log.exists() else ""
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}\n{words}"
    assert "finished" in done.stderr
    assert _folders_above(place) == before
    assert not [one for one in running() if environment_of(one.pid).get(RUN_ID) == run_id]
