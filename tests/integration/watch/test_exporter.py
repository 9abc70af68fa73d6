"""A process shows its metrics on loopback, when its environment says so."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tallystick.watch.metrics import Exporter, Metrics
from tests.support.patience import patience
from training.telling import tell_nobody

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def scraped(address: str) -> str:
    """What Prometheus would read."""
    with _DIRECT.open(f"http://{address}/metrics", timeout=patience(10)) as answer:
        text: bytes = answer.read()
    return text.decode()


def test_exporter__while_open__serves_what_is_counted_and_says_where(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    tell = Metrics(tell_nobody, registry)
    file = tmp_path / "lease" / "metrics-peer.json"
    exporter = Exporter(registry, file, process="peer")
    tell("item_done", step=2, item=1)

    [target] = json.loads(file.read_text())
    text = scraped(target["targets"][0])
    exporter.close()

    assert target == {"targets": [exporter.address], "labels": {"process": "peer"}}
    assert 'tallystick_items_total{event="item_done"} 1.0' in text
    assert "python_info" not in text  # nothing of the global registry
    assert not file.exists()
    with pytest.raises(OSError):
        scraped(exporter.address)


PROGRAM = """
import pathlib, sys, threading
from tallystick.sdk.process import teller
folder = pathlib.Path(sys.argv[1])
teller("peer", folder)("finished", step=1)
file = folder / "metrics-peer.json"
print(file.exists(), "prometheus_client" in sys.modules, threading.active_count())
"""


@pytest.mark.parametrize(("wanted", "said"), [("1", "True True 2"), ("0", "False False 1")])
def test_teller__as_the_environment_says__exports_or_costs_nothing(
    tmp_path: Path, wanted: str, said: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"TALLYSTICK_METRICS": wanted},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=True,
    )

    told, last = ended.stdout.splitlines()
    assert json.loads(told)["event"] == "finished"
    assert last == said
    assert list(tmp_path.glob("metrics-*")) == []
