"""How does the embedded chain run, and how does it survive?

anvil keeps its state in memory and writes it every second into one file, in place: killed in the
middle of that, it leaves half a file and would never start again. So each whole dump is copied
aside, and before a start a broken file is replaced by the copy; at most the last seconds are lost,
and senders broadcast again what they have stored. No account is unlocked (`--accounts 0`): `up`
gives gas to the role accounts on anvil's own port, which the gateway hides from everybody else.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from contracts.terms.errors import ChainUnreachable, ServiceUnreachable
from contracts.terms.ids import Address
from tallystick.files import replace_file
from tallystick.up import json_rpc
from tallystick.up.data_folder import DataFolder, read_json
from tallystick.up.spec import ServiceSpec

CHAIN_ID = 31_337
GAS_WEI = 10_000 * 10**18
"""What a role account starts with; anvil's gas costs nothing to anybody."""

_COPY_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_COPY_SHARE = 20  # at most one part in twenty of the time goes into copying


class Anvil:
    """The one chain of the data folder.

    Attributes:
        url: Address; whoever reaches it rules the chain.
        state: The file that anvil writes.
        copy: The last dump that was whole.
        deployment: Where the contracts are, once they are.
        saved: Exists once the chain's file holds the contracts.
    """

    def __init__(self, folder: DataFolder, binary: Path, port: int) -> None:
        self.folder, self.binary, self.port = folder, binary, port
        self.url = f"http://127.0.0.1:{port}"
        self.state = folder.chain / "state.json"
        self.copy = folder.chain / "state.copy.json"
        self.deployment = folder.chain / "deployment.json"
        self.saved = folder.chain / "deployment.saved"

    def spec(self) -> ServiceSpec:
        """How it is supervised. Its HOME is ours: it would write into the user's."""
        return ServiceSpec(
            name="anvil",
            argv=(
                str(self.binary),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--hardfork", "prague", "--chain-id", str(CHAIN_ID), "--accounts", "0"),
                *("--state", str(self.state), "--state-interval", "1"),
                *("--order", "fifo", "--no-cors", "--quiet"),
            ),
            environment={"HOME": str(self.folder.chain)},
            port=self.port,
            prepare=self.prepare,
            ready=lambda: json_rpc.answers(self.url),
            working_folder=self.folder.chain,
        )

    async def prepare(self) -> None:
        """Put the copy in place of a state file that is not whole (see `repair`)."""
        await asyncio.to_thread(repair, self.state, self.copy)
        if not self.state.exists():  # a chain that begins has no contracts
            self.saved.unlink(missing_ok=True)
            self.deployment.unlink(missing_ok=True)
            for sent in self.folder.chain.glob("deployer.db*"):  # on a chain that nobody saw
                sent.unlink()

    async def give_gas(self, accounts: Sequence[Address]) -> None:
        """Fill up accounts that have nothing; the others stay as they are.

        Raises:
            ChainUnreachable: anvil does not answer.
        """
        for account in accounts:
            name = "0x" + account.hex()
            balance = await json_rpc.call(self.url, "eth_getBalance", name, "latest")
            if not isinstance(balance, str):
                raise ChainUnreachable(f"eth_getBalance answered {balance!r}")
            if int(balance, 16) == 0:
                await json_rpc.call(self.url, "anvil_setBalance", name, hex(GAS_WEI))

    async def keep_copies(self) -> None:
        """Copy each whole dump aside, until cancelled."""
        last = b""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            dump = await asyncio.to_thread(whole_dump, self.state, last)
            if dump is not None:
                await asyncio.to_thread(replace_file, self.copy, dump)
                last = dump
            spent = loop.time() - began
            await asyncio.sleep(max(_COPY_SECONDS, _COPY_SHARE * spent))

    async def save(self) -> None:
        """Return when the contracts are in the chain's file; `saved` says so from then on.

        Raises:
            ServiceUnreachable: the chain was killed in between and has forgotten them.
        """
        await self.wait_saved()
        escrow = read_json(self.deployment).get("escrow")
        code = await json_rpc.call(self.url, "eth_getCode", escrow, "latest")
        if code == "0x":
            self.deployment.unlink(missing_ok=True)
            raise ServiceUnreachable(
                "the chain was killed before it could keep its contracts: run `up` again"
            )
        replace_file(self.saved, b"")

    async def wait_saved(self) -> None:
        """Return when a dump that began after this call is whole, and copied."""
        called_at = time.time_ns()
        dumps: set[int] = set()
        while True:
            if self.state.exists() and (written := self.state.stat().st_mtime_ns) > called_at:
                dumps.add(written)
            # The first one may have begun before the call and ended after it.
            if len(dumps) > 1 and (dump := whole_dump(self.state, b"")):
                await asyncio.to_thread(replace_file, self.copy, dump)
                return
            await asyncio.sleep(_LOOK_SECONDS)


def whole_dump(state: Path, last: bytes) -> bytes | None:
    """The state file's bytes if they are one whole dump and differ from `last`; else None."""
    try:
        before = state.stat()
        data = state.read_bytes()
        after = state.stat()
    except FileNotFoundError:
        return None
    # Equal times mean that nobody wrote between: the bytes are not of two dumps.
    unchanged = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, len(data))
    return data if unchanged and data != last and is_whole(data) else None


def is_whole(data: bytes) -> bool:
    """Whether these bytes are a complete JSON object, as a dump is."""
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


def repair(state: Path, copy: Path) -> None:
    """Before a start: replace a broken or lost state file by the copy.

    Raises:
        ServiceUnreachable: it is broken and there is no copy that is whole.
    """
    found = state.read_bytes() if state.exists() else b""
    if is_whole(found):
        return
    saved = copy.read_bytes() if copy.exists() else b""
    if is_whole(saved):
        replace_file(state, saved)
        return
    if not found:  # never written: killed before its first dump
        state.unlink(missing_ok=True)
        return
    os.replace(state, state.with_suffix(".broken"))
    raise ServiceUnreachable(
        f"the chain's state was cut off while it was written, and there is no copy; it is kept as "
        f"{state.with_suffix('.broken')}"
    )
