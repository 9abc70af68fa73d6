"""Prometheus metrics of one process, made of what it tells.

There is one account of what happened, the log lines (`training.telling`); a metric is a sum over
them. Nothing is counted anywhere else, and a process that exports nothing counts nothing.

    tallystick_events_total{event}             lines told: item_done, item_failed, reopened, ...
    tallystick_items_total{event}              items in them
    tallystick_working_seconds_total{event}    what they took
    tallystick_waiting_seconds_total{event}    what they waited for before that
    tallystick_cpu_seconds_total{event}        CPU time, of what measures it: replayed
    tallystick_step                            the newest step
    tallystick_loss_nats{of}                   per token: of an item, of a step, on validation rows
    tallystick_queue_length                    who waits for a turn to compute
    tallystick_members                         of the job, as its coordinator counts them
    tallystick_received_bytes_total, tallystick_sent_bytes_total       between peers
    tallystick_phase_seconds{phase}            histogram of a step's phases (`watch.phases`)
    tallystick_process_info{job, peer, stage}  1

The port is a free one on loopback, written as a target of Prometheus' file-based discovery.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from tallystick.files import BY_UMASK, replace_file
from tallystick.watch.phases import Phase, next_phase
from training.telling import Tell

_LOOPBACK = "127.0.0.1"
_LOSSES = {"item_done": "item", "seal_stored": "step", "validated": "validation"}
_ABOUT_ITSELF = ("opened", "resumed", "joined")
_PHASE_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)


class Metrics:
    """Counts what is told; read by `prometheus_client` from another thread."""

    def __init__(
        self,
        tell: Tell,
        registry: CollectorRegistry,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Tells to `tell`, and counts in `registry`."""
        self._tell, self._monotonic_ns = tell, monotonic_ns
        self._phase: Phase | None = None
        self._traffic = {"bytes_in": 0, "bytes_out": 0}
        self._info: tuple[str, ...] | None = None

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tallystick_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tallystick_{name}", text, labels, registry=registry)

        self._events = counter("events", "Lines told.", "event")
        self._items = counter("items", "Items in the lines told.", "event")
        self._working = counter("working_seconds", "What they took.", "event")
        self._waiting = counter("waiting_seconds", "What they waited before that.", "event")
        self._cpu = counter("cpu_seconds", "What they took of a CPU.", "event")
        self._step = gauge("step", "The newest step.")
        self._loss = gauge("loss_nats", "Loss in nats per token.", "of")
        self._queue = gauge("queue_length", "Who waits for a turn to compute.")
        self._members = gauge("members", "Members of the job.")
        self._bytes = {
            "bytes_in": counter("received_bytes", "Bytes from peers."),
            "bytes_out": counter("sent_bytes", "Bytes to peers."),
        }
        self._phases = Histogram(
            "tallystick_phase_seconds",
            "What the phases of a step took.",
            ["phase"],
            registry=registry,
            buckets=_PHASE_BUCKETS,
        )
        self._process = gauge("process_info", "Who this is.", "job", "peer", "stage")

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self._tell(event, **fields)
        numbers = {name: value for name, value in fields.items() if type(value) is int}
        self._count(event, numbers)
        self._set(event, numbers)
        if event in _ABOUT_ITSELF:
            self._introduce(fields)

    def _count(self, event: str, numbers: Mapping[str, int]) -> None:
        self._events.labels(event).inc()
        if "items" in numbers or "item" in numbers:
            self._items.labels(event).inc(numbers.get("items", 1))
        if "took_us" in numbers:
            self._working.labels(event).inc(numbers["took_us"] / 1e6)
        if "waited_us" in numbers:
            self._waiting.labels(event).inc(numbers["waited_us"] / 1e6)
        if "cpu_us" in numbers:
            self._cpu.labels(event).inc(numbers["cpu_us"] / 1e6)
        for name, counter in self._bytes.items():
            if name in numbers:  # since the process began
                counter.inc(max(0, numbers[name] - self._traffic[name]))
                self._traffic[name] = numbers[name]
        if "step" in numbers:
            now = self._monotonic_ns() // 1000
            self._phase, passed = next_phase(self._phase, event, numbers["step"], now)
            if passed is not None:
                self._phases.labels(passed.name).observe(passed.took_us / 1e6)

    def _set(self, event: str, numbers: Mapping[str, int]) -> None:
        if "step" in numbers:
            self._step.set(numbers["step"])
        if "queue" in numbers:
            self._queue.set(numbers["queue"])
        if "all_members" in numbers:
            self._members.set(numbers["all_members"])
        if "loss" in numbers and event in _LOSSES:
            self._loss.labels(_LOSSES[event]).set(numbers["loss"] / 1e6)

    def _introduce(self, fields: Mapping[str, object]) -> None:
        about = tuple(_text(fields.get(name)) for name in ("job", "peer", "stage"))
        if self._info is not None:
            self._process.remove(*self._info)
        self._process.labels(*about).set(1)
        self._info = about


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return "" if value is None else str(value)


class Exporter:
    """Serves a registry on a free loopback port until it is closed."""

    def __init__(self, registry: CollectorRegistry, file: Path, *, process: str) -> None:
        """Serve, and then say where in `file`.

        Raises:
            OSError: no port is free, or the file cannot be written.
        """
        self._file = file
        self._server, self._thread = start_http_server(0, addr=_LOOPBACK, registry=registry)
        self.address = f"{_LOOPBACK}:{self._server.server_port}"
        target = {"targets": [self.address], "labels": {"process": process}}
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps([target]).encode(), mode=BY_UMASK, durable=False)

    def close(self) -> None:
        """Stop serving; safe to repeat."""
        self._file.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
