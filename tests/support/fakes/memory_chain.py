"""The contracts without a chain: the model of the escrow, in blocks of this process's memory.

Every write is a block of its own, as under automine; time is what the test says it is. What the
model (`escrow_model`) refuses is refused, and what it changes is told in the contract's events.
Signatures were checked by the use cases; gas does not exist. `forget` loses the newest blocks, as a
killed anvil does: `resend` brings their transactions back.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from contracts.chain.blocks import Block, Log
from contracts.governance.anchor_chain import anchored, recorded
from contracts.governance.escrow import BURN, Budget, Channel, EscrowState, EscrowTimes
from contracts.governance.parameters import PARAMETERS
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import digest
from contracts.terms.encoding import Value
from contracts.terms.errors import ContractRefused
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Quit
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.messages import JobHeader, JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain, WalletDomain
from market.bodies.market import ContractsView, EscrowTimesView, NetworkView, TokenView
from market.service.ports import AccountNow, Claim, Order
from market.service.rows import SlashRow
from tests.support import escrow_model as model

NAMES = ("token", "parameters", "escrow", "seals")
TIMES = EscrowTimes(model.MARGIN, model.ANNOUNCE, model.EXECUTE, model.TAIL)


@dataclass
class _State:
    """All contracts: rebuilt from the transactions when blocks are forgotten."""

    escrow: model.Escrow = field(default_factory=lambda: model.Escrow(0, [], defaultdict(int)))
    places: dict[JobId, int] = field(default_factory=dict)
    tokens: dict[Address, int] = field(default_factory=lambda: defaultdict(int))
    gas: dict[Address, int] = field(default_factory=lambda: defaultdict(int))
    permits: dict[Address, int] = field(default_factory=lambda: defaultdict(int))
    batches: int = 0
    pending: int = 0  # block of the batch whose beacon is missing
    anchor_chain: Digest = ZERO_DIGEST

    def place(self, job: JobId) -> int:
        """Of a job that was opened, in the model's list."""
        _need(job in self.places, "UnknownJob")
        return self.places[job]

    def job(self, job: JobId) -> model.Job:
        """A job that was opened."""
        return self.escrow.jobs[self.place(job)]

    def member(self, job: JobId, account: Address) -> model.Member:
        """One account's part of it."""
        return self.job(job).members[_who(account)]

    def call(self, name: str, *arguments: object) -> None:
        """A call of the model."""
        try:
            getattr(self.escrow, name)(*arguments)
        except model.Refused as refusal:
            raise ContractRefused(f"{name} is refused") from refusal


@dataclass
class _Block:
    number: int
    fork: int  # how often blocks were forgotten before it
    timestamp: int
    transaction: Digest
    events: list[Log] = field(default_factory=list)

    @property
    def hash(self) -> Digest:
        """The block hash."""
        return digest("block", f"{self.number} {self.fork} {self.timestamp}".encode())

    def log(self, event: str, contract: str = "escrow", **args: Value) -> None:
        """Append an event."""
        self.events.append(
            Log(
                contract,
                event,
                args,
                self.number,
                self.hash,
                self.transaction,
                len(self.events),
                UnixSeconds(self.timestamp),
            )
        )


Effect = Callable[[_State, _Block], None]


class MemoryChain:
    """`Chain` in memory. `now` is the time of the next block, in seconds."""

    def __init__(self, domain: Domain, anchorer: Address, *, now: int = 1_700_000_000) -> None:
        self.domain, self.anchorer, self.now = domain, anchorer, now
        self.blocks: list[_Block] = [_Block(0, 0, now, ZERO_DIGEST)]
        self.parameters = {each.name: each.default for each in PARAMETERS}
        self.state = _State()
        self._sent: dict[str, Effect] = {}  # by intention, in the order of nonces
        self._mined: list[str] = []
        self._forgotten = 0

    # ---------------------------------------------------------------------- what tests do to it

    def act(self, effect: Effect) -> None:
        """What somebody does with its own gas."""
        self._mine(f"act:{len(self._sent)}", effect)

    def give_tokens(self, account: Address, amount: int) -> None:
        """Tokens for an account, without a faucet."""
        self.act(lambda s, b: _mint(s, account, amount))

    def deposit(self, account: Address, amount: int) -> None:
        """An account puts tokens into its balance in the escrow."""
        self.act(lambda s, b: _deposit(s, b, account, amount))

    def withdraw(self, account: Address, amount: int) -> None:
        """An account takes free money out."""
        self.act(lambda s, b: _withdraw(s, b, account, amount))

    def open_as_poster(self, header: JobHeader) -> None:
        """The poster opens its job with its own tokens."""
        self.act(lambda s, b: _open(s, b, header))

    def order(self, order: Order) -> None:
        """A party does itself what it could have signed."""
        self.act(lambda s, b: _order(s, b, order))

    def drop(self, job: JobId, account: Address) -> None:
        """The canceller ends a slash."""
        self.act(lambda s, b: _drop(s, b, job, account))

    def forget(self, blocks: int) -> None:
        """Lose the newest blocks; their transactions are known to their senders only."""
        kept = len(self.blocks) - blocks
        self.blocks, self._mined = self.blocks[:kept], self._mined[: kept - 1]
        self._forgotten += 1
        self.state = _State()
        for name, block in zip(self._mined, self.blocks[1:], strict=True):
            again = _Block(block.number, block.fork, block.timestamp, block.transaction)
            self.state.escrow.now = block.timestamp
            self._sent[name](self.state, again)

    # -------------------------------------------------------------------------------------- reads

    async def network(self, version: str, now: UnixMillis) -> NetworkView:
        """See `Chain.network`."""
        token = WalletDomain("Tallystick Test Token", "1", self.domain.chain_id, _address("token"))
        addresses = {name: _address(name) for name in NAMES} | {"escrow": self.domain.escrow}
        return NetworkView(
            version=version,
            chain_id=self.domain.chain_id,
            genesis=_view(self.blocks[0]).hash,
            rpc_url="http://127.0.0.1:0",
            embedded=True,
            contracts=ContractsView(**addresses),
            deployed_block=0,
            token=TokenView(
                name=token.name,
                version=token.version,
                symbol="TALLY",
                decimals=6,
                domain_separator=token.separator,
            ),
            parameters=self.parameters,
            times=EscrowTimesView.of(TIMES),
            anchorer=self.anchorer,
            confirmations=1,
            clock=now,
        )

    async def times(self) -> EscrowTimes:
        """See `Chain.times`."""
        return TIMES

    async def head(self) -> Block:
        """See `Chain.head`."""
        return _view(self.blocks[-1])

    async def heads(self) -> tuple[Block, Block]:
        """See `Chain.heads`."""
        return await self.head(), await self.head()

    async def block(self, number: int) -> Block | None:
        """See `Chain.block`."""
        return _view(self.blocks[number]) if number < len(self.blocks) else None

    async def events(self, first: int, last: int) -> list[Log]:
        """See `Chain.events`."""
        return [event for block in self.blocks[first : last + 1] for event in block.events]

    async def account(self, account: Address) -> AccountNow:
        """See `Chain.account`."""
        return AccountNow(
            gas=self.state.gas[account],
            token=BaseUnits(self.state.tokens[account]),
            permit_nonce=self.state.permits[account],
            free=BaseUnits(self.state.escrow.balances[_who(account)]),
        )

    async def budget(self, job: JobId) -> Budget:
        """See `Chain.budget`."""
        if job not in self.state.places:
            return Budget()
        held = self.state.job(job)
        bucket = (held.allowance, held.since) if held.since is not None else (0, 0)
        return Budget(held.funded, held.committed, held.closed_at, *bucket)

    async def channels(
        self, places: Sequence[tuple[JobId, Address]]
    ) -> tuple[Block, Mapping[tuple[JobId, Address], Channel]]:
        """See `Chain.channels`."""
        return await self.head(), {place: self._channel(*place) for place in places}

    def _channel(self, job: JobId, account: Address) -> Channel:
        if job not in self.state.places:
            return Channel()
        return Channel(**asdict(self.state.member(job, account)))

    async def escrow_state(self, known: EscrowState, block: Block) -> EscrowState:
        """See `Chain.escrow_state`; of the head."""
        return EscrowState(
            known.announce_seconds,
            known.terms,
            {each: self.state.escrow.balances[_who(each)] for each in known.balances},
            {each: await self.budget(each) for each in known.budgets},
            {place: self._channel(*place) for place in known.channels},
        )

    # ------------------------------------------------------------------------------------- writes

    async def open_job(
        self, spec: Signed[JobSpec], permit_deadline: UnixSeconds, permit: bytes
    ) -> Digest:
        """See `Chain.open_job`."""
        header = spec.message.header()

        def effect(state: _State, block: _Block) -> None:
            _need(block.timestamp <= permit_deadline, "ExpiredPermit")
            _need(header.open_by <= block.timestamp + model.MARGIN, "NotInTime")
            _open(state, block, header)
            state.permits[header.poster] += 1

        return self._mine(f"open:{header.job().hex()}", effect)

    async def bond_many(self, job: JobId, bonds: Sequence[Signed[Bond]]) -> Digest:
        """See `Chain.bond_many`."""

        def effect(state: _State, block: _Block) -> None:
            for each in bonds:
                try:
                    _order(state, block, each.message)
                except ContractRefused:
                    continue

        name = b"".join(each.message.digest() for each in bonds).hex()
        return self._mine(f"bonds:{name}", effect)

    async def relay(self, header: JobHeader, order: Signed[Order]) -> Digest:
        """See `Chain.relay`."""
        message = order.message
        return self._mine(f"order:{message.digest().hex()}", lambda s, b: _order(s, b, message))

    async def claim(self, claim: Claim) -> Digest:
        """See `Chain.claim`."""
        first, size = claim.part.leaves[0].account, len(claim.part.leaves)
        name = f"claim:{claim.seal.message.digest().hex()}:{first.hex()}:{size}:{claim.total}"
        return self._mine(name, lambda s, b: _claim(s, b, claim))

    async def release(self, job: JobId, ended: Mapping[Address, UnixSeconds]) -> Digest:
        """See `Chain.release`."""
        said = ",".join(f"{account.hex()}:{at}" for account, at in sorted(ended.items()))
        return self._mine(
            f"release:{job.hex()}:{said}", lambda s, b: _release(s, b, job, sorted(ended))
        )

    async def reclaim(self, header: JobHeader, amount: BaseUnits, funded: BaseUnits) -> Digest:
        """See `Chain.reclaim`."""
        name, relayer = f"reclaim:{header.job().hex()}:{funded}:{amount}", _address("relayer")
        return self._mine(name, lambda s, b: _reclaim(s, b, header, relayer, amount))

    async def announce(self, slash: SlashRow, times_announced: int) -> Digest:
        """See `Chain.announce`."""
        name = f"announce:{slash.evidence.hex()}:{times_announced}"
        return self._mine(name, lambda s, b: _announce(s, b, slash))

    async def burn(self, slash: SlashRow, times_announced: int) -> Digest:
        """See `Chain.burn`."""
        name = f"burn:{slash.evidence.hex()}:{times_announced}"
        return self._mine(name, lambda s, b: _burn(s, b, slash.job, slash.account))

    async def anchor(self, root: Digest) -> Digest:
        """See `Chain.anchor`."""
        caller = self.anchorer
        return self._mine(f"anchor:{root.hex()}", lambda s, b: _anchor(s, b, caller, root))

    async def record(self, root: Digest) -> Digest:
        """See `Chain.record`."""
        caller = self.anchorer
        return self._mine(f"record:{root.hex()}", lambda s, b: _record(s, b, caller))

    async def give(
        self, account: Address, number: int, gas: int, tokens: BaseUnits
    ) -> tuple[Digest, Digest]:
        """See `Chain.give`."""
        name = f"{account.hex()}:{number}"
        return (
            self._mine(f"gas:{name}", lambda s, b: _gas(s, account, gas)),
            self._mine(f"tokens:{name}", lambda s, b: _mint(s, account, tokens)),
        )

    async def resend(self, newest: Block) -> int:
        """See `Chain.resend`."""
        lost = [name for name in self._sent if name not in self._mined]
        for name in lost:
            try:
                self._mine(name, self._sent[name])
            except ContractRefused:  # it reverts now: who sent it may try again
                del self._sent[name]
        return len(lost)

    async def is_over(self, until: UnixSeconds) -> bool:
        """See `Chain.is_over`."""
        if self.blocks[-1].timestamp < until <= self.now:
            self._mine(f"empty:{len(self.blocks)}", lambda s, b: None)
        return self.blocks[-1].timestamp >= until

    def _mine(self, name: str, effect: Effect) -> Digest:
        """Run `effect` once per intention, in a block of its own."""
        transaction = digest("transaction", name.encode())
        if name in self._mined:
            return transaction
        block = _Block(len(self.blocks), self._forgotten, self.now, transaction)
        self.state.escrow.now = self.now
        effect(self.state, block)  # refuses before it changes anything
        self.blocks.append(block)
        self._mined.append(name)
        self._sent[name] = effect
        return transaction


def _address(name: str) -> Address:
    return Address(digest("contract", name.encode())[:20])


def _who(account: Address) -> str:
    """As the model calls an account."""
    return model.BURN if account == BURN else account.hex()


def _view(block: _Block) -> Block:
    return Block(block.number, block.hash, UnixSeconds(block.timestamp))


def _need(holds: bool, error: str) -> None:
    if not holds:
        raise ContractRefused(error, error=error)


def _gas(state: _State, account: Address, amount: int) -> None:
    state.gas[account] += amount


def _mint(state: _State, account: Address, amount: int) -> None:
    state.tokens[account] += amount


def _pay(state: _State, account: Address, amount: int) -> None:
    _need(state.tokens[account] >= amount, "ERC20InsufficientBalance")
    state.tokens[account] -= amount


# --------------------------------------------------------------------------------------- the escrow


def _deposit(state: _State, block: _Block, account: Address, amount: int) -> None:
    _pay(state, account, amount)
    state.call("deposit", _who(account), amount)
    block.log("Deposited", account=account, amount=amount)


def _withdraw(state: _State, block: _Block, account: Address, amount: int) -> None:
    state.call("withdraw", _who(account), amount)
    _mint(state, account, amount)
    block.log("Withdrawn", account=account, to=account, amount=amount, fee=0)


def _open(state: _State, block: _Block, header: JobHeader) -> None:
    job = header.job()
    _need(job not in state.places, "JobExists")
    _need(block.timestamp <= header.open_by, "NotInTime")
    _pay(state, header.poster, header.budget)
    state.places[job] = len(state.escrow.jobs)
    state.escrow.jobs.append(
        model.Job(
            rate=header.rate,
            funded=header.budget,
            allowance=header.burst,
            burst=header.burst,
            poster=_who(header.poster),
            members=defaultdict(model.Member),
        )
    )
    block.log(
        "Opened",
        job=job,
        poster=header.poster,
        budget=header.budget,
        burst=header.burst,
        rate=header.rate,
    )


def _reclaim(state: _State, block: _Block, header: JobHeader, caller: Address, amount: int) -> None:
    job = header.job()
    before = state.job(job).funded
    state.call("reclaim", state.place(job), _who(caller), amount)
    block.log("Reclaimed", job=job, amount=before - state.job(job).funded)


def _order(state: _State, block: _Block, order: Order) -> None:
    job, at = order.job, state.place(order.job)
    _need(block.timestamp <= order.by <= block.timestamp + model.MARGIN, "NotInTime")
    match order:
        case Grant(limits=limits):
            with _telling(state, block, job, *(each.account for each in limits)):
                state.call("grant", at, [(_who(each.account), each.limit) for each in limits])
        case Bond(account=account, stake=stake):
            state.call("bond", at, _who(account), stake)
            block.log("Bonded", job=job, account=account, stake=stake)
        case Quit(account=account, keep=keep):
            with _telling(state, block, job, account):
                state.call("quit", at, _who(account), keep)
        case End(accounts=accounts):
            with _telling(state, block, job, *accounts):
                for account in accounts:
                    state.call("end", at, _who(account))
        case Close():
            was_closed = state.job(job).closed_at
            state.call("close", at)
            if not was_closed:
                block.log("Closed", job=job)


@contextmanager
def _telling(state: _State, block: _Block, job: JobId, *accounts: Address) -> Iterator[None]:
    """Tell which of these accounts have another limit since, and which have ended."""
    before = {account: replace(state.member(job, account)) for account in accounts}
    yield
    for account, was in before.items():
        now = state.member(job, account)
        if now.limit != was.limit:
            block.log("LimitSet", job=job, account=account, limit=now.limit)
        if now.end and not was.end:
            block.log("Ended", job=job, account=account)


def _claim(state: _State, block: _Block, claim: Claim) -> None:
    job, leaves = claim.header.job(), claim.part.leaves
    before = {leaf.account: replace(state.member(job, leaf.account)) for leaf in leaves}
    said = [(_who(leaf.account), leaf.earned, leaf.vested) for leaf in leaves]
    state.call("claim", state.place(job), said)
    for account, was in before.items():
        now = state.member(job, account)
        paid = now.claimed - was.claimed
        if paid or now.earned != was.earned:
            block.log("Claimed", job=job, account=account, amount=paid, earned=now.earned)


def _release(state: _State, block: _Block, job: JobId, accounts: Sequence[Address]) -> None:
    for account in accounts:
        ended, stake = state.job(job).ended(_who(account)), state.member(job, account).stake
        if not ended or block.timestamp < ended + model.TAIL:
            continue
        with _telling(state, block, job, account):
            state.call("release", state.place(job), _who(account))
        block.log("Released", job=job, account=account, stake=stake)


def _announce(state: _State, block: _Block, slash: SlashRow) -> None:
    job, account, amount = slash.job, slash.account, slash.amount
    state.call("announce", state.place(job), _who(account), amount)
    block.log("SlashAnnounced", job=job, account=account, amount=amount, evidence=slash.evidence)


def _burn(state: _State, block: _Block, job: JobId, account: Address) -> None:
    before = state.member(job, account).stake
    with _telling(state, block, job, account):
        state.call("burn", state.place(job), _who(account))
        burned = before - state.member(job, account).stake
        block.log("Burned", job=job, account=account, amount=burned)


def _drop(state: _State, block: _Block, job: JobId, account: Address) -> None:
    state.call("drop", state.place(job), _who(account))
    block.log("SlashDropped", job=job, account=account)


# ------------------------------------------------------------------------------------------ anchors


def _anchor(state: _State, block: _Block, caller: Address, root: Digest) -> None:
    if state.pending:
        _record(state, block, caller)
    state.anchor_chain = anchored(state.anchor_chain, root, block.number)
    block.log(
        "Anchored",
        "seals",
        caller=caller,
        index=state.batches,
        root=root,
        anchorChain=state.anchor_chain,
    )
    state.batches += 1
    state.pending = block.number


def _record(state: _State, block: _Block, caller: Address) -> None:
    _need(state.pending != 0, "NothingPending")
    beacon = digest("beacon", str(state.pending).encode())
    state.anchor_chain = recorded(state.anchor_chain, beacon)
    block.log(
        "Recorded",
        "seals",
        caller=caller,
        index=state.batches - 1,
        blockNumber=state.pending,
        beacon=beacon,
    )
    state.pending = 0
