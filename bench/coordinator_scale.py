"""What does a round cost the coordinator, by the number of peers?

`python -m bench.coordinator_scale [--peers N ...]` prints a line a size, by which powers of the
number of peers the figures grow, and bytes by call. A whole job in one event loop: the real
coordinator, with its handlers, router, journal and sessions, and real peers over the in-memory
transport, which has the frames of the real one and no TLS. Peers compute nothing: an item is a few
numbers (`CountingStrategy`), four a peer, and waits for a drawn time, so that results come one by
one. Three groups, twelve buckets each at every size: `bench.round_scale` has what buckets cost.

Only waiting takes time (`SimulatedLoop`), so no deadline depends on the machine. CPU seconds are
those of the coordinator's tasks and threads alone: each callback of the loop is timed, and counted
to whoever began it. Bytes are those of calls to and from the coordinator, without frames.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from bench.measuring import about, limit, parsed, parser_of
from bench.round_scale import GROUPS, ITEMS, powers
from contracts.terms.ids import SessionKey
from contracts.terms.messages import JobSpec
from contracts.terms.work import Leaf
from tests.support.fakes.counting import CountingStrategy, elements_of, rows_for
from tests.support.fakes.memory_transport import MemoryTransport
from tests.support.lying import Answer, AnsweringTransport
from tests.support.simulated_time import SimulatedLoop
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, make_papers
from training.strategies.port import Direction, Draft, Item, Items, Source
from training.transport.port import Handler, Transport
from training.worker.ports import Arithmetic

SIZES = (30, 300)
CHUNKS = 12
ROUNDS = 4  # the first, in which peers join, and the last, after which they leave, do not count
ITEM_SECONDS = 0.5, 1.5
SEED = 1
_who: ContextVar[str] = ContextVar("who", default="")


class TimingLoop(SimulatedLoop):
    """Knows whose callbacks took how much CPU time."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()
        super().__init__()

    def _timed(self, callback: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time()
        try:
            return callback(*args)
        finally:
            self.seconds[_who.get()] += time.thread_time() - began

    def call_soon(  # type: ignore[override]  # a callback's types are lost
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See `AbstractEventLoop.call_soon`."""
        return super().call_soon(self._timed, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `AbstractEventLoop.call_at`."""
        return super().call_at(when, self._timed, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """See `AbstractEventLoop.run_in_executor`."""
        timed = partial(copy_context().run, self._timed, func)
        return super().run_in_executor(executor, timed, *args)


class Waiting(CountingStrategy):
    """An item takes a drawn time; gradients are drawn, so that no two buckets are equal."""

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        await asyncio.sleep(random.uniform(*ITEM_SECONDS))
        return await super().run(item, direction, source)

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        self._sum = [random.gauss(0, 1) for _ in self._sum]
        return super().commit(items)


def waiting(spec: JobSpec) -> Arithmetic:
    """What peers compute with."""
    return Arithmetic(partial(Waiting, spec), rows_for(spec), elements_of(spec))


class Measured:
    """A job of so many peers, and what its coordinator used by round."""

    def __init__(self, num_peers: int, folder: Path, loop: TimingLoop) -> None:
        papers = make_papers(
            *(f"peer-{number:03}" for number in range(num_peers)),
            stages=GROUPS,
            steps=ROUNDS,
            units_per_step=num_peers // GROUPS * ITEMS,
            chunks=CHUNKS,
            validate_every=ROUNDS,
            checkpoint_every=ROUNDS,
        )
        self._loop, self._key = loop, papers.session.key
        self._bytes = Counter[str]()
        self.seals: list[tuple[float, Counter[str]]] = []  # CPU seconds and bytes until each
        self.swarm = MemorySwarm(
            papers, folder, waiting, together=True, wrap=self._wrap, watch=self._watch,
            pause=asyncio.sleep,
        )  # fmt: skip

    def _watch(self, name: str, line: Line) -> None:
        if name == COORDINATOR and line["event"] == "seal_stored":
            self.seals.append((self._loop.seconds[COORDINATOR], self._bytes.copy()))

    def _wrap(self, name: str, transport: Transport) -> Transport:
        if name == COORDINATOR:
            assert isinstance(transport, MemoryTransport)
            _who.set(COORDINATOR)
            context, accept = copy_context(), transport.open_pipe
            # Who dials in begins the task that serves it: that is the coordinator's all the same.
            transport.open_pipe = lambda key: context.copy().run(accept, key)  # type: ignore[method-assign]
        return AnsweringTransport(transport, partial(_Weighing, self, name))

    def weigh(self, name: str, caller: SessionKey, method: str, parts: Sequence[Buffer]) -> None:
        """Count a call of `caller`, or its answer, that `name` serves."""
        if name == COORDINATOR or caller == self._key:
            self._bytes[method] += sum(memoryview(part).nbytes for part in parts)

    def figures(self) -> tuple[float, Counter[str]]:
        """CPU seconds and bytes of a usual round."""
        within = list(zip(self.seals[:-2], self.seals[1:-1], strict=True))
        seconds = statistics.median(after[0] - before[0] for before, after in within)
        return seconds, within[-1][1][1] - within[-1][0][1]


class _Weighing:
    def __init__(self, measured: Measured, name: str, handler: Handler) -> None:
        self._measured, self._name, self._handler = measured, name, handler

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        self._measured.weigh(self._name, caller, method, (header, *tensors))
        answer, sent = await self._handler.handle(caller, method, header, tensors)
        self._measured.weigh(self._name, caller, method, (answer, *sent))
        return answer, sent


def measure(num_peers: int) -> tuple[dict[str, float], Counter[str]]:
    """CPU seconds and kilobytes of a round of the coordinator; and bytes by call."""
    random.seed(SEED)
    loop = TimingLoop()
    with (
        tempfile.TemporaryDirectory(prefix="tallystick-scale-") as folder,
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        measured = Measured(num_peers, Path(folder), loop)
        runner.run(measured.swarm.run(timeout=10**6))
    seconds, sent = measured.figures()
    return {"peers": num_peers, "cpu": seconds, "kB": sent.total() / 1000}, sent


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=SIZES)
    options = parsed(parser, minutes=60, peers=(6, 12))
    rows = []
    for size in options.peers:
        with limit(options.minutes, f"rounds of {size} peers"):
            row, sent = measure(size)
        rows.append(row)
        print(", ".join(f"{name} {figure:.4g}" for name, figure in row.items()), flush=True)
        print({name: count for name, count in sent.most_common() if count}, flush=True)
    print("powers:", {name: powers(rows, name) for name in ("cpu", "kB")})
    print(json.dumps(about(seed=SEED) | {"rows": rows}))


if __name__ == "__main__":
    main()
