"""A chain whose node shares no code with anvil: EthereumJS, with blocks made as a validator does.

Its Prague genesis holds the contracts that each block writes to (EIP-4788, EIP-2935). After the
merge a node makes no blocks by itself, so `SecondEvm` asks for one a second through the Engine API,
and chooses their times. `make nightly` installs it.
Source: https://github.com/ethereum/execution-apis, engine/prague.md.
"""

import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.json_rpc import JsonRpc
from contracts.terms.errors import ChainUnreachable
from contracts.terms.ids import Address
from tallystick.up import child as children
from tallystick.up.node import find_node
from tallystick.up.ports import choose
from tests.support.patience import patience

FOLDER = Path(__file__).parent.parent / "second_evm"
CLIENT = FOLDER / "node_modules/@ethereumjs/client/dist/esm/bin/cli.js"
INSTALLED_BY = "`npm ci --ignore-scripts` in tests/second_evm"
CHAIN_ID = 1337
BLOCK_SECONDS = 1
WEI = 10**20

BEACON_ROOTS = "000f3df6d732807ef1319fb7b8bb8522d0beac02"  # EIP-4788
HISTORY = "0000f90827f1c53a10cb7a02335b175320002935"  # EIP-2935
SYSTEM_CODE = {
    BEACON_ROOTS: "0x3373fffffffffffffffffffffffffffffffffffffffe14604d57602036146024575f5ffd5b5f"
    "35801560495762001fff810690815414603c575f5ffd5b62001fff01545f5260205ff35b5f5ffd5b62001fff42064281"
    "555f359062001fff015500",
    HISTORY: "0x3373fffffffffffffffffffffffffffffffffffffffe14604657602036036042575f35600143038111"
    "604257611fff81430311604257611fff9006545f5260205ff35b5f5ffd5b5f35611fff60014303065500",
}
_OLD_FORKS = (
    "homestead", "eip150", "eip155", "eip158", "byzantium", "constantinople", "petersburg",
    "istanbul", "muirGlacier", "berlin", "london", "arrowGlacier", "grayGlacier", "mergeNetsplit",
)  # fmt: skip
_ZERO = "0x" + bytes(32).hex()
_NOBODY = "0x" + bytes(20).hex()


def genesis(accounts: Iterable[Address], at: int) -> dict[str, object]:
    """A genesis under the rules of Prague, in the format of go-ethereum; `accounts` have gas."""
    alloc = {
        name: {"balance": "0x0", "nonce": "0x1", "code": SYSTEM_CODE[name]} for name in SYSTEM_CODE
    }
    alloc |= {account.hex(): {"balance": hex(WEI)} for account in accounts}
    blobs = {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716}
    return {
        "config": {
            "chainId": CHAIN_ID,
            **{f"{fork}Block": 0 for fork in _OLD_FORKS},
            **{f"{fork}Time": 0 for fork in ("shanghai", "cancun", "prague")},
            "terminalTotalDifficulty": 0,
            "terminalTotalDifficultyPassed": True,
            "blobSchedule": {"cancun": blobs, "prague": blobs},
        },
        "timestamp": hex(at),
        "gasLimit": hex(36_000_000),
        "baseFeePerGas": hex(10**9),
        "difficulty": "0x0",
        "number": "0x0",
        "nonce": "0x0",
        "gasUsed": "0x0",
        "extraData": "0x",
        "mixHash": _ZERO,
        "parentHash": _ZERO,
        "beaconbase": _NOBODY,
        "blobGasUsed": "0x0",
        "excessBlobGas": "0x0",
        "alloc": alloc,
    }


@dataclass
class SecondEvm:
    """The node, and the validator that asks it for blocks."""

    url: str
    rpc: JsonRpc
    engine: JsonRpc

    async def make_blocks(self) -> None:
        """One block a second, until cancelled; a node that does not answer is asked again."""
        while True:
            with contextlib.suppress(ChainUnreachable):  # it ends connections that idle for 5 s
                await self.make_block()
            await asyncio.sleep(BLOCK_SECONDS)

    async def make_block(self) -> None:
        """A block of what waits, whose time is now or a second after its parent's."""
        parent = await self.rpc.request("eth_getBlockByNumber", ["latest", False])
        at = max(int(parent["timestamp"], 16) + 1, int(time.time()))
        attributes: dict[str, object] = {
            "timestamp": hex(at),
            "prevRandao": _ZERO,
            "suggestedFeeRecipient": _NOBODY,
            "withdrawals": [],
            "parentBeaconBlockRoot": _ZERO,
        }
        begun = await self._choose(parent["hash"], attributes)
        built = await self.engine.request("engine_getPayloadV4", [begun["payloadId"]])
        payload, requests = built["executionPayload"], built["executionRequests"]
        ran = await self.engine.request("engine_newPayloadV4", [payload, [], _ZERO, requests])
        assert ran["status"] == "VALID", ran
        await self._choose(payload["blockHash"], None)

    async def _choose(self, head: str, attributes: dict[str, object] | None) -> dict[str, Any]:
        """Make `head` the newest block; with attributes, begin the next one."""
        chosen = {"headBlockHash": head, "safeBlockHash": head, "finalizedBlockHash": _ZERO}
        answer: dict[str, Any] = await self.engine.request(
            "engine_forkchoiceUpdatedV3", [chosen, attributes]
        )
        assert answer["payloadStatus"]["status"] == "VALID", answer
        return answer


@contextlib.asynccontextmanager
async def second_evm(folder: Path, accounts: Iterable[Address]) -> AsyncIterator[SecondEvm]:
    """Start the node in `folder`, with gas for `accounts`, and have it make blocks."""
    assert CLIENT.exists(), f"EthereumJS is missing: `make nightly`, or {INSTALLED_BY}, installs it"
    ports = list[int]()
    for _ in range(3):
        ports.append(choose(ports, random.SystemRandom()))
    (folder / "prague.json").write_text(json.dumps(genesis(accounts, int(time.time()))))
    child = children.start(
        _arguments(folder, *ports),
        environment={"HOME": str(folder)},
        log=folder / "node.log",
        working_folder=folder,
    )
    try:
        url, engine_url = (f"http://127.0.0.1:{port}" for port in ports[:2])
        async with (
            JsonRpc(url, timeout_seconds=patience(30)) as rpc,
            JsonRpc(engine_url, timeout_seconds=patience(30)) as engine,
        ):
            async with asyncio.timeout(patience(30)):
                while not await _answers(engine):
                    assert not child.ended.is_set(), child.last_words()
                    await asyncio.sleep(0.05)
            node = SecondEvm(url, rpc, engine)
            making = asyncio.create_task(node.make_blocks())
            try:
                yield node
            finally:
                making.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await making  # raises what ended it
    finally:
        await child.stop(signal.SIGKILL, grace=5.0)


def _arguments(folder: Path, port: int, engine_port: int, peer_port: int) -> tuple[str, ...]:
    return (
        str(find_node()),
        str(CLIENT),
        *("--gethGenesis", str(folder / "prague.json"), "--dataDir", str(folder / "node")),
        *("--rpc", "--rpcAddr", "127.0.0.1", "--rpcPort", str(port)),
        *("--rpcEngine", "--rpcEngineAddr", "127.0.0.1", "--rpcEnginePort", str(engine_port)),
        "--rpcEngineAuth=false",  # it listens on loopback, for the length of a test
        *("--sync", "none", "--isSingleNode", "--saveReceipts"),
        *("--discDns=false", "--discV4=false", "--maxPeers", "0", "--port", str(peer_port)),
    )


async def _answers(engine: JsonRpc) -> bool:
    with contextlib.suppress(ChainUnreachable):
        await engine.request("eth_chainId", [])
        return True
    return False
