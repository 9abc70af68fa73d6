"""What all parts of a peer's work share: who and where we are, at which state, with which bytes.

The round that is worked on is the one after the last seal in our state. The group is the one that
the coordinator gave us last; it is in the journal.
"""

from functools import partial
from pathlib import Path

from contracts.keys.wallet import Session as SessionKeys
from contracts.terms.errors import Conflict, Malformed, NotFound, Unavailable, WrongBytes
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.work import Leaf, Sort
from training.changes import Changes
from training.disk import MOST_STEPS
from training.stages.torch_free import StateRoots, chunk_elements
from training.strategies.port import Layout, State, Strategy
from training.telling import Tell
from training.worker.book import WorkerBook
from training.worker.engine import Engine
from training.worker.files import ServedFiles
from training.worker.peers import Peers
from training.worker.ports import Arithmetic, Behaviour
from training.worker.store import Store


class Station:
    """One lease's place in a job."""

    def __init__(
        self,
        book: WorkerBook,
        folder: Path,
        peers: Peers,
        session: SessionKeys,
        arithmetic: Arithmetic,
        behaviour: Behaviour,
        tell: Tell,
    ) -> None:
        self.book, self.folder, self.peers, self.session = book, folder, peers, session
        self.behaviour, self._tell = behaviour, tell
        self.engine = Engine()
        self.sealed_changes = Changes()
        """Marked with every seal that is in our state."""
        self.store = Store(folder)
        self.served = ServedFiles(self.engine, most=MOST_STEPS + 1)
        make, compute = arithmetic.strategy_for, self.engine.compute
        self.strategy: Strategy = behaviour.arithmetic(make, compute)
        self.layout: Layout = self.strategy.layout(book.record.spec)
        self.rows = arithmetic.rows
        self.elements = arithmetic.elements or chunk_elements(book.record.spec)
        """Of each bucket of the job."""
        self.applied = StepNumber(0)
        """The last round whose seal is in our state."""
        self.all_applied = StepNumber(0)
        """By every member, says the coordinator: later buckets are still wanted."""
        self.ahead: tuple[Leaf, ...] = ()
        """Of what was in the gradient as the round began: computed ahead of it."""
        self._state: State | None = None
        self._roots: StateRoots | None = None

    def tell(self, event: str, **fields: object) -> None:
        """See `Tell`; by whoever has the turn, with what it took since its last event."""
        self._tell(event, **(self.engine.take_timings() | fields))

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self.session.peer

    @property
    def round(self) -> StepNumber:
        """The round that we work on."""
        return StepNumber(self.applied + 1)

    # -------------------------------------------------------------------------------- the group

    def folder_of(self, group: StageIndex) -> Path:
        """Where checkpoints and weights of a group lie."""
        return self.folder / "groups" / f"{group:02d}"

    @property
    def checkpoints(self) -> Path:
        """Folder of our group's checkpoints."""
        return self.folder_of(self.group) / "checkpoints"

    @property
    def seat(self) -> StageIndex | None:
        """The group that there is a state of; `book.group` is the one that we belong to."""
        return self._state.group if self._state else None

    @property
    def group(self) -> StageIndex:
        """The group that we work in.

        Raises:
            Unavailable: the coordinator has not given us one yet.
        """
        if self._state is None or self.book.group != self._state.group:
            raise Unavailable("this peer has no group yet")
        return self._state.group

    # -------------------------------------------------------------------------------- the state

    @property
    def state(self) -> State:
        """That of our group, or of one that is measured.

        Raises:
            Unavailable: there is none yet, and whoever knows us may ask for files of it.
        """
        if self._state is None:
            raise Unavailable("this peer has no state yet")
        return self._state

    @property
    def roots(self) -> StateRoots:
        """Digests of our state."""
        assert self._roots is not None  # since `note_state`
        return self._roots

    async def build(self, group: StageIndex) -> None:
        """Hold the initial state of a group from now on; raises as `Strategy.first_state`."""
        self._state = None
        self._state = await self.engine.run(partial(self.strategy.first_state, group))
        self._roots = None

    def take_state(self, state: State) -> None:
        """Hold this one from now on."""
        self._state = state

    async def note_state(self, round: StepNumber) -> None:
        """Our state is the one after `round`: work on the next one begins."""
        state, strategy = self.state, self.strategy

        def begin() -> tuple[StateRoots, tuple[Leaf, ...]]:
            strategy.start(state, StepNumber(round + 1))
            return state.roots(), strategy.leaves()

        self._roots, self.ahead = await self.engine.run(begin)
        self.applied = round

    def need_round(self, round: int) -> None:
        """Refuse work of another round.

        Raises:
            Unavailable: we have not come to that round yet. Conflict: it is over.
        """
        if round > self.round:
            raise Unavailable(f"round {round} is not here yet, this is {self.round}")
        if round < self.round:
            raise Conflict(f"round {round} is over, this is {self.round}")

    # ------------------------------------------------------------------------------------ bytes

    async def holds(self, digest: Digest, sort: Sort) -> bool:
        """Whether these bytes are on our disk, and whole."""
        return await self.engine.run_io(partial(self._is_held, digest, sort))

    def _is_held(self, digest: Digest, sort: Sort) -> bool:
        if self.store.has(digest) and not self.store.is_checked(digest):
            try:
                self.peers.forms.need(sort, self.store.read(digest), digest)
            except (NotFound, Malformed, WrongBytes):  # a power cut has left half of them
                self.store.note_checked(digest, is_right=False)
            else:
                self.store.note_checked(digest, is_right=True)
        return self.store.has(digest)

    async def read(self, digest: Digest, sort: Sort) -> bytes:
        """Bytes that are on our disk; raises NotFound, Unavailable."""

        def read() -> bytes:
            if not self._is_held(digest, sort):
                raise NotFound(f"{digest.hex()} is not here", digest=digest.hex())
            return self.store.read(digest)

        return await self.engine.run_io(read)
