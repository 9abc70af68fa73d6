"""Does `PayEscrow` do on a real chain what its model does, call by call, to the second?"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from eth_abi.abi import decode
from web3 import Web3

from contracts.chain.artifacts import artifact
from contracts.chain.connection import ChainConnection
from contracts.keys.wallet import Wallet
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.escrow_messages import Bond, Close, End, Grant, JobHeader, Limit, Quit
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import WalletMessage
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import WalletDomain
from tallystick.up.ports import choose
from tests.support import escrow_model as model
from tests.support.anvil import Anvil
from tests.support.examples import examples
from tests.support.history import make_wallet
from tests.support.patience import patience

COORDINATOR = make_wallet("coordinator")
WALLETS = {who: make_wallet(who) for who in model.ACCOUNTS}
BURN = Address(bytes.fromhex("000000000000000000000000000000000000dEaD"))
DETAILS = Digest(keccak(b"details"))
RICH = 10**12


class Twin:
    """The deployed contract, called as the model is."""

    def __init__(self, request: Callable[..., Awaitable[Any]], chain_id: int) -> None:
        self._request, self._chain_id = request, chain_id
        self._token, self._escrow = Address(bytes(20)), Address(bytes(20))
        self._headers: list[JobHeader] = []
        self._slasher, self._canceller = make_wallet("slasher"), make_wallet("canceller")
        self._abi = Web3().eth.contract(abi=artifact("PayEscrow").abi)
        self._erc20 = Web3().eth.contract(abi=artifact("TestToken").abi)

    async def begin(self, escrow: model.Escrow) -> None:
        """Deploy; open the jobs and fill the balances of a new `escrow`."""
        minter = self._slasher.account
        names = (*WALLETS.values(), COORDINATOR, self._slasher, self._canceller)
        for account in [each.account for each in names]:
            await self._request("anvil_setBalance", [_hex(account), hex(10**20)])
            await self._request("anvil_impersonateAccount", [_hex(account)])
        self._token = await self._deploy("TestToken", minter, 2**90, 2**90)
        times = [model.MARGIN, model.ANNOUNCE, model.EXECUTE, model.TAIL]
        self._escrow = await self._deploy(
            "PayEscrow", self._token, minter, self._canceller.account, times
        )
        for wallet in WALLETS.values():
            faucet = self._erc20.encode_abi("faucet", [wallet.account, RICH])
            approve = self._erc20.encode_abi("approve", [self._escrow, RICH])
            assert await self._send(self._token, faucet, minter)
            assert await self._send(self._token, approve, wallet.account)
        now = await self._now()
        for number, job in enumerate(escrow.jobs):
            header = JobHeader(
                poster=WALLETS["poster"].account, coordinator=COORDINATOR.account,
                spec_hash=DETAILS, budget=BaseUnits(job.funded), burst=BaseUnits(model.BURST),
                rate=BaseUnits(job.rate), open_by=UnixSeconds(now + model.MARGIN), salt=number,
            )  # fmt: skip
            self._headers.append(header)
            signature = WALLETS["poster"].sign_digest(self._digest(header))
            assert await self._call("open", header.typed_values(), signature, by="stranger")
        for who, balance in escrow.balances.items():
            if balance:
                assert await self._call("deposit", WALLETS[who].account, balance, by="stranger")
        escrow.now = await self._now()

    async def make(self, call: model.Call, now: int) -> bool:
        """Make the call at the time `now`; whether the contract took it."""
        await self._request("evm_setNextBlockTimestamp", [now])
        name, arguments = call.name, list(call.arguments)
        match name:
            case "deposit":
                return await self._call(
                    "deposit", self._account(arguments[0]), arguments[1], by="stranger"
                )
            case "withdraw":
                account = self._account(arguments[0])
                return await self._call("withdraw", account, arguments[1], by=arguments[0])
        header = self._headers[arguments[0]]
        job, soon = header.job(), UnixSeconds(now + model.MARGIN)
        match name, arguments[1:]:
            case "top_up", [amount]:
                return await self._call("topUp", job, amount, by="poster")
            case "reclaim", [who, amount]:
                return await self._call("reclaim", header.typed_values(), amount, by=who)
            case "grant", [limits]:
                listed = tuple(Limit(account=self._account(who), limit=at) for who, at in limits)
                grant = Grant(job=job, limits=listed, by=soon)
                words = [limit.word() for limit in listed]
                return await self._signed(
                    "grant", grant, COORDINATOR, header.typed_values(), words, soon
                )
            case "bond", [who, stake]:
                bond = Bond(job=job, account=self._account(who), stake=stake, by=soon)
                return await self._signed("bond", bond, WALLETS[who], *bond.typed_values())
            case "quit", [who, keep]:
                quit_ = Quit(job=job, account=self._account(who), keep=keep, by=soon)
                return await self._signed("quit", quit_, WALLETS[who], *quit_.typed_values())
            case "end", [who]:
                end = End(job=job, accounts=(self._account(who),), by=soon)
                return await self._signed(
                    "end", end, COORDINATOR, header.typed_values(), end.accounts, soon
                )
            case "close", []:
                close = Close(job=job, by=soon)
                return await self._signed(
                    "close", close, WALLETS["poster"], header.typed_values(), soon
                )
            case "claim", [leaves]:
                return await self._claim(header, leaves)
            case "release", [who]:
                return await self._call("release", job, [self._account(who)], by="stranger")
            case "announce", [who, amount]:
                account = self._account(who)
                return await self._call("announce", job, account, amount, DETAILS, by="slasher")
            case "burn" | "drop", [who]:
                return await self._call(name, job, self._account(who), by="slasher")
        raise AssertionError(name)

    async def check(self, escrow: model.Escrow) -> None:
        """Compare all that the contract stores with the model."""
        for who, balance in escrow.balances.items():
            assert (await self._words("balances", self._account(who)))[0] == balance
        for header, job in zip(self._headers, escrow.jobs, strict=True):
            name = header.job()
            stored = await self._words("jobs", name)
            assert stored == [job.funded, job.committed, job.closed_at, 1]
            bucket = [job.allowance, job.since] if job.since else [0, 0]
            assert await self._words("buckets", name) == bucket
            for who, it in job.members.items():
                account = self._account(who)
                granted = [it.limit, it.claimed, it.earned, bool(it.end)]
                assert await self._words("granted", name, account) == granted, who
                bond = [it.stake, it.end, it.slash_amount, it.slash_from]
                assert await self._words("bonds", name, account) == bond, who

    async def _claim(self, header: JobHeader, leaves: Sequence[tuple[str, int, int]]) -> bool:
        accounts = [(self._account(who), earned, vested) for who, earned, vested in leaves]
        hashes = [
            merkle.earned_leaf(account, BaseUnits(earned), BaseUnits(vested))
            for account, earned, vested in accounts
        ]
        sealed = [*hashes, DETAILS] if len(hashes) == 2 else hashes  # a third leaf, not shown
        root = merkle.root(sealed, merkle.plain_node, DETAILS)
        typehash = keccak(b"Seal(bytes32 job,bytes32 payRoot,bytes32 details)")
        struct = Digest(keccak(typehash + header.job() + root + DETAILS))
        shown = (header.typed_values(), DETAILS, COORDINATOR.sign_digest(self._signing(struct)))
        if len(accounts) == 1:
            return await self._call("claim", *shown, *accounts[0], 0, [], by="stranger")
        packed = b"".join(
            account + earned.to_bytes(10, "big") + vested.to_bytes(10, "big")
            for account, earned, vested in accounts
        )
        return await self._call("claimAll", *shown, packed, 0, [DETAILS], by="stranger")

    async def _signed(
        self, name: str, message: WalletMessage, wallet: Wallet, *arguments: object
    ) -> bool:
        signature = wallet.sign_digest(self._digest(message))
        return await self._call(name, *arguments, signature, by="slasher")

    def _digest(self, message: WalletMessage) -> Digest:
        return self._signing(message.digest())

    def _signing(self, struct_hash: Digest) -> Digest:
        domain = WalletDomain("Tallystick", "2", self._chain_id, self._escrow)
        return Digest(keccak(b"\x19\x01" + domain.separator + struct_hash))

    def _account(self, who: str) -> Address:
        return BURN if who == model.BURN else WALLETS[who].account

    async def _call(self, name: str, *arguments: object, by: str) -> bool:
        wallet = self._slasher if by == "slasher" else WALLETS[by]
        return await self._send(self._escrow, self._abi.encode_abi(name, arguments), wallet.account)

    async def _send(self, to: Address, data: str, sender: Address) -> bool:
        sent = {"from": _hex(sender), "to": _hex(to), "data": data, "gas": hex(3_000_000)}
        return bool(int((await self._receipt(sent))["status"], 16))

    async def _deploy(self, name: str, *arguments: object) -> Address:
        contract = Web3().eth.contract(abi=artifact(name).abi, bytecode=artifact(name).creation)
        data = contract.constructor(*arguments).data_in_transaction
        sent = {"from": _hex(self._slasher.account), "data": data, "gas": hex(9_000_000)}
        return Address(bytes.fromhex((await self._receipt(sent))["contractAddress"][2:]))

    async def _receipt(self, sent: dict[str, str]) -> dict[str, str]:
        transaction = await self._request("eth_sendTransaction", [sent])
        async with asyncio.timeout(patience(20)):
            while (
                receipt := await self._request("eth_getTransactionReceipt", [transaction])
            ) is None:
                await asyncio.sleep(0.002)  # its block is on the way
        return dict(receipt)

    async def _words(self, name: str, *arguments: object) -> list[int]:
        call = {"to": _hex(self._escrow), "data": self._abi.encode_abi(name, arguments)}
        answer = bytes.fromhex((await self._request("eth_call", [call, "latest"]))[2:])
        return list(decode(["uint256"] * (len(answer) // 32), answer))

    async def _now(self) -> int:
        block = await self._request("eth_getBlockByNumber", ["latest", False])
        return int(block["timestamp"], 16)


async def test_escrow__random_histories__contract_and_model_agree(tmp_path: Path) -> None:
    anvil = Anvil(tmp_path, choose((), SystemRandom()))
    await anvil.start()
    try:
        async with ChainConnection(anvil.url) as chain:
            for seed in range(examples(1)):
                await _compare(Twin(chain.request, await chain.chain_id()), Random(seed))
    finally:
        await anvil.stop()


async def _compare(twin: Twin, draw: Random) -> None:
    escrow = model.new_escrow(0)
    await twin.begin(escrow)
    taken = 0
    for number in range(120):
        escrow.wait(1)  # blocks of one second
        call = model.random_call(draw, escrow)
        accepted = call.apply(escrow)
        if call.name != "wait":
            assert await twin.make(call, escrow.now) == accepted, (number, call)
        taken += accepted
        if number % 20 == 0:
            await twin.check(escrow)
    await twin.check(escrow)
    assert taken > 40


def _hex(account: Address) -> str:
    return f"0x{account.hex()}"
