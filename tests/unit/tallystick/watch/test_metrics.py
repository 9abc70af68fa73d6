"""Metrics are sums over what is told."""

import pytest
from prometheus_client import CollectorRegistry

from tallystick.watch.metrics import Metrics
from training.telling import Tell, tell_nobody


class Counted:
    """A process that tells, and what a scrape of it would read."""

    def __init__(self, tell: Tell = tell_nobody) -> None:
        self.registry = CollectorRegistry()
        self.now_us = 0
        self.tell = Metrics(tell, self.registry, monotonic_ns=lambda: self.now_us * 1000)

    def value(self, name: str, **labels: str) -> float | None:
        """One sample; None where there is none."""
        return self.registry.get_sample_value(f"tallystick_{name}", labels)


def test_metrics__units__are_counted_with_what_they_took_and_waited() -> None:
    counted = Counted()

    counted.tell("item_done", step=3, item=0, took_us=1_500_000, waited_us=250_000, queue=2)
    counted.tell("item_done", step=3, item=7, took_us=500_000, waited_us=0, queue=1)
    counted.tell("items_reported", step=3, items=8)

    assert counted.value("items_total", event="item_done") == 2
    assert counted.value("items_total", event="items_reported") == 8
    assert counted.value("working_seconds_total", event="item_done") == 2.0
    assert counted.value("waiting_seconds_total", event="item_done") == 0.25
    assert counted.value("queue_length") == 1
    assert counted.value("step") == 3


def test_metrics__totals_of_bytes__are_not_added_up() -> None:
    counted = Counted()

    counted.tell("seal_applied", step=1, bytes_in=100, bytes_out=40)
    counted.tell("seal_applied", step=2, bytes_in=130, bytes_out=40)

    assert counted.value("received_bytes_total") == 130
    assert counted.value("sent_bytes_total") == 40


def test_metrics__what_is_told__is_told_on() -> None:
    told: list[tuple[str, dict[str, object]]] = []

    counted = Counted(lambda event, **fields: told.append((event, fields)))
    counted.tell("waits", step=1, code="unavailable", loss=None)

    assert told == [("waits", {"step": 1, "code": "unavailable", "loss": None})]
    assert counted.value("events_total", event="waits") == 1


def test_metrics__line_that_cannot_be_told__counts_nothing() -> None:
    def broken(event: str, **fields: object) -> None:
        raise BrokenPipeError

    counted = Counted(broken)

    with pytest.raises(BrokenPipeError):
        counted.tell("item_done", item=1)
    assert counted.value("events_total", event="item_done") is None
