"""`JobEscrow` on a real chain, called as its model is: same parties, same calls, same second."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar

from contracts.chain.blocks import Log
from contracts.chain.connection import Call, ChainConnection
from contracts.chain.deploy import creation_code
from contracts.chain.wrappers.escrow import JobEscrow
from contracts.chain.wrappers.token import Token
from contracts.governance.claims import Path as PayPath
from contracts.governance.claims import Subtree
from contracts.governance.escrow import (
    BURN,
    Budget,
    Channel,
    EscrowState,
    FundingTerms,
    differences,
    held,
)
from contracts.governance.pay import PayLeaf
from contracts.keys.wallet import Wallet
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Limit, Quit
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import JobHeader, WalletMessage
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from tallystick.up.ports import choose
from tests.support import escrow_model as model
from tests.support.anvil import Anvil
from tests.support.history import make_wallet
from tests.support.patience import patience

M = TypeVar("M", bound=WalletMessage)

COORDINATOR = make_wallet("coordinator")
WALLETS = {who: make_wallet(who) for who in model.ACCOUNTS}
SLASHER, CANCELLER = make_wallet("slasher"), make_wallet("canceller")
DETAILS = Digest(keccak(b"details"))
RICH = BaseUnits(10**12)


class Twin:
    """The deployed contract, called as the model is."""

    def __init__(self, chain: ChainConnection) -> None:
        self._chain, self._headers = chain, list[JobHeader]()
        self._known, self.logs = EscrowState(model.ANNOUNCE), list[Log]()
        self._read_to = 0

    async def begin(self, escrow: model.Escrow) -> None:
        """Deploy; open the jobs and fill the balances of a new `escrow`."""
        for wallet in (*WALLETS.values(), COORDINATOR, SLASHER, CANCELLER):
            await self._chain.request("anvil_setBalance", [_hex(wallet.account), hex(10**20)])
            await self._chain.request("anvil_impersonateAccount", [_hex(wallet.account)])
        minter = SLASHER.account
        self._token = Token(self._chain, await self._deploy("TestToken", (minter, 2**90, 2**90)))
        times = (model.MARGIN, model.ANNOUNCE, model.EXECUTE, model.TAIL)
        roles = (self._token.address, minter, CANCELLER.account)
        self._contract = JobEscrow(self._chain, await self._deploy("JobEscrow", (*roles, times)))
        self._domain = Domain(await self._chain.chain_id(), self._contract.address)
        for wallet in WALLETS.values():
            assert await self._send(self._token.faucet(wallet.account, RICH), SLASHER)
            assert await self._send(self._token.approve(self._contract.address, RICH), wallet)
        now = (await self._chain.head()).timestamp
        for number, job in enumerate(escrow.jobs):
            header = JobHeader(
                poster=WALLETS["poster"].account, coordinator=COORDINATOR.account,
                spec_hash=DETAILS, budget=BaseUnits(job.funded), burst=BaseUnits(model.BURST),
                rate=BaseUnits(job.rate), open_by=UnixSeconds(now + model.MARGIN), salt=number,
            )  # fmt: skip
            self._headers.append(header)
            signature = self._signed(header, WALLETS["poster"]).signature
            assert await self._send(self._contract.open(header, signature), WALLETS["stranger"])
        for who, balance in escrow.balances.items():
            if balance:
                deposit = self._contract.deposit(WALLETS[who].account, BaseUnits(balance))
                assert await self._send(deposit, WALLETS["stranger"])
        escrow.now = (await self._chain.head()).timestamp

    async def make(self, call: model.Call, now: int) -> bool:
        """Make the call at the time `now`; whether the contract took it."""
        await self._chain.request("evm_setNextBlockTimestamp", [now])
        encoded, sender = self._encoded(call, UnixSeconds(now + model.MARGIN))
        return await self._send(encoded, sender)

    def _encoded(self, call: model.Call, by: UnixSeconds) -> tuple[Call, Wallet]:
        """The call, and who sends it: a stranger what others have signed."""
        contract, stranger = self._contract, WALLETS["stranger"]
        name, arguments = call.name, list(call.arguments)
        match name:
            case "deposit":
                return contract.deposit(_account(arguments[0]), arguments[1]), stranger
            case "withdraw":
                wallet = WALLETS[arguments[0]]
                return contract.withdraw(wallet.account, arguments[1]), wallet
        header = self._headers[arguments[0]]
        job = header.job()
        match name, arguments[1:]:
            case "top_up", [amount]:
                return contract.top_up(job, amount), WALLETS["poster"]
            case "reclaim", [who, amount]:
                return contract.reclaim(header, amount), WALLETS[who]
            case "grant", [limits]:
                listed = tuple(Limit(account=_account(who), limit=at) for who, at in limits)
                grant = Grant(job=job, limits=listed, by=by)
                return contract.grant(header, self._signed(grant, COORDINATOR)), SLASHER
            case "bond", [who, stake]:
                bond = Bond(job=job, account=_account(who), stake=stake, by=by)
                return contract.bond(self._signed(bond, WALLETS[who])), SLASHER
            case "quit", [who, keep]:
                quit_ = Quit(job=job, account=_account(who), keep=keep, by=by)
                return contract.quit(self._signed(quit_, WALLETS[who])), SLASHER
            case "end", [who]:
                end = End(job=job, accounts=(_account(who),), by=by)
                return contract.end(header, self._signed(end, COORDINATOR)), SLASHER
            case "close", []:
                close = self._signed(Close(job=job, by=by), WALLETS["poster"])
                return contract.close(header, close), SLASHER
            case "claim", [leaves]:
                return self._claim(header, leaves), stranger
            case "release", [who]:
                return contract.release(job, [_account(who)]), stranger
            case "announce", [who, amount]:
                return contract.announce(job, _account(who), amount, DETAILS), SLASHER
            case "burn", [who]:
                return contract.burn(job, _account(who)), SLASHER
            case "drop", [who]:
                return contract.drop(job, _account(who)), SLASHER
        raise AssertionError(name)

    def _claim(self, header: JobHeader, leaves: Sequence[tuple[str, int, int]]) -> Call:
        """One leaf that is the whole tree, or two that are half of one with a third leaf."""
        pay = tuple(
            PayLeaf(_account(who), BaseUnits(earned), BaseUnits(vested))
            for who, earned, vested in leaves
        )
        hashes = [merkle.earned_leaf(each.account, each.earned, each.vested) for each in pay]
        siblings = (DETAILS,) if len(pay) == 2 else ()
        root = merkle.root([*hashes, *siblings])
        typehash = keccak(b"Seal(bytes32 job,bytes32 payRoot,bytes32 details)")
        struct = Digest(keccak(typehash + header.job() + root + DETAILS))
        seal = COORDINATOR.sign_digest(self._domain.signing_digest(struct))
        path = PayPath(0, siblings)
        if len(pay) == 1:
            return self._contract.claim(header, DETAILS, seal, pay[0], path)
        return self._contract.claim_all(header, DETAILS, seal, Subtree(pay, path))

    async def check(self, escrow: model.Escrow) -> None:
        """Compare what the contract stores with its events and with the model."""
        head = await self._chain.head()
        for log in await self._contract.events(self._read_to, head.number):
            self._known.apply(log.event, log.args, log.at)
            self.logs.append(log)
        self._read_to = head.number + 1
        stored = await self._contract.state(self._known, head)
        assert differences(self._known, stored) == []
        assert held(stored) == await self._token.balance(self._contract.address, head)
        expected = EscrowState(model.ANNOUNCE)
        expected.balances = {_account(who): each for who, each in escrow.balances.items()}
        for header, job in zip(self._headers, escrow.jobs, strict=True):
            bucket = (job.allowance, job.since) if job.since else (0, 0)
            expected.terms[header.job()] = FundingTerms(header.poster, header.burst, header.rate)
            expected.budgets[header.job()] = Budget(
                job.funded, job.committed, job.closed_at, *bucket
            )
            for who, it in job.members.items():
                expected.channels[header.job(), _account(who)] = Channel(
                    it.limit,
                    it.claimed,
                    it.earned,
                    it.stake,
                    it.end,
                    it.slash_amount,
                    it.slash_from,
                )
        assert differences(expected, stored) == []

    def _signed(self, message: M, wallet: Wallet) -> Signed[M]:
        return wallet.sign(message, self._domain)

    async def _deploy(self, name: str, arguments: tuple[object, ...]) -> Address:
        data = "0x" + creation_code(name, arguments).hex()
        sent = {"from": _hex(SLASHER.account), "data": data, "gas": hex(9_000_000)}
        return Address(bytes.fromhex((await self._receipt(sent))["contractAddress"][2:]))

    async def _send(self, call: Call, wallet: Wallet) -> bool:
        sent = {"from": _hex(wallet.account), "to": _hex(call.to), "gas": hex(3_000_000)}
        return bool(
            int((await self._receipt(sent | {"data": f"0x{call.data.hex()}"}))["status"], 16)
        )

    async def _receipt(self, sent: dict[str, str]) -> dict[str, str]:
        transaction = await self._chain.request("eth_sendTransaction", [sent])
        async with asyncio.timeout(patience(20)):
            while (
                receipt := await self._chain.request("eth_getTransactionReceipt", [transaction])
            ) is None:
                await asyncio.sleep(0.002)  # its block is on the way
        return dict(receipt)


async def play(twin: Twin, draw: Random, calls: int) -> None:
    """Make random calls on the contract and on its model, and see that they agree."""
    escrow = model.new_escrow(0)
    await twin.begin(escrow)
    taken = 0
    for number in range(calls):
        escrow.wait(1)  # blocks of one second
        call = model.random_call(draw, escrow)
        accepted = call.apply(escrow)
        if call.name != "wait":
            assert await twin.make(call, escrow.now) == accepted, (number, call)
        taken += accepted
        if number % 20 == 0:
            await twin.check(escrow)
    await twin.check(escrow)
    assert taken > calls // 3


@contextlib.asynccontextmanager
async def twin_on_chain(folder: Path) -> AsyncIterator[Twin]:
    """A chain of its own, and nothing on it."""
    anvil = Anvil(folder, choose((), SystemRandom()))
    await anvil.start()
    try:
        async with ChainConnection(anvil.url) as chain:
            yield Twin(chain)
    finally:
        await anvil.stop()


def _account(who: str) -> Address:
    return BURN if who == model.BURN else WALLETS[who].account


def _hex(account: Address) -> str:
    return f"0x{account.hex()}"
