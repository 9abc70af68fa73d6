"""Putting the contracts on a chain, once: `python -m contracts.chain.deploy`.

Their addresses follow from the deployer's nonces, so they are known before. Every transaction is
stored before it is sent: interrupted anywhere, a second call goes on where the first stopped, at
the same addresses. The deployer needs gas and has no power afterwards.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Annotated, Any

import rlp
from eth_abi.abi import encode as abi_encode
from pydantic import Field

from contracts.chain.artifacts import artifact
from contracts.chain.connection import ChainConnection
from contracts.chain.deployment import DEVELOPMENT_CHAINS, NAMES, Deployment
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.governance.escrow import EscrowTimes
from contracts.governance.parameters import parameter_values
from contracts.keys.store import load_or_create_wallet
from contracts.settings import ProcessSettings, settings_of
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN
from contracts.terms.digest import keccak
from contracts.terms.errors import Conflict, Malformed, TallystickError
from contracts.terms.ids import Address

_DAY = 86_400

ORDER = ("token", "parameters", "seals", "escrow")
"""Nonce order."""

ARTIFACTS = {
    "token": "TestToken",
    "parameters": "Parameters",
    "seals": "SealAnchor",
    "escrow": "JobEscrow",
}

DEVELOPMENT_TIMES = EscrowTimes(margin=60, announce=10, execute=20, tail=300)
LEAST_TIMES = EscrowTimes(margin=_DAY, announce=2 * _DAY, execute=_DAY, tail=7 * _DAY)
"""Of a chain with real money: people must be able to see what is announced, and to answer."""

FAUCET_CALL_CAP = 10_000 * BASE_UNITS_PER_TOKEN
FAUCET_ACCOUNT_CAP = 1_000_000 * BASE_UNITS_PER_TOKEN


class DeploySettings(ProcessSettings):
    """`TALLYSTICK_*` variables of a deployment."""

    rpc_url: str
    keys: Path
    """Folder of the role keystores; missing ones are made."""
    contracts: Path
    """Where the deployment file is written."""
    chain_parameters: Annotated[dict[str, int], Field(default_factory=dict)]
    """Changes to the defaults of `governance.parameters`, as JSON."""
    escrow_times: Annotated[dict[str, int], Field(default_factory=dict)]
    """Changes to the times of the escrow (margin, announce, execute, tail), in seconds, as JSON."""


def contract_address(deployer: Address, nonce: int) -> Address:
    """Address of the contract that `deployer` creates with `nonce` (yellow paper, section 7)."""
    return Address(keccak(rlp.encode([deployer, nonce]))[12:])


def escrow_times(chain_id: int, changes: Mapping[str, int]) -> EscrowTimes:
    """The times of the escrow on a chain, as the contract will accept them.

    Raises:
        Malformed: a name that is no time, or less than the chain or the contract allows.
    """
    is_development = chain_id in DEVELOPMENT_CHAINS
    least = EscrowTimes(1, 1, 1, 1) if is_development else LEAST_TIMES
    default = DEVELOPMENT_TIMES if is_development else LEAST_TIMES
    if unknown := sorted(set(changes) - set(asdict(default))):
        names = ", ".join(asdict(default))
        raise Malformed(f"{unknown[0]!r} is no time of the escrow; there are: {names}")
    times = replace(default, **changes)
    for name, seconds in asdict(times).items():
        if not getattr(least, name) <= seconds < 2**40:
            raise Malformed(f"{name} is {seconds} s, allowed are {getattr(least, name)} and more")
    shortest = times.announce + times.execute + times.margin
    if times.tail <= shortest:
        raise Malformed(
            f"tail is {times.tail} s; it must be above announce + execute + margin, {shortest} s"
        )
    return times


async def deploy(
    sender: Sender,
    *,
    chain_id: int,
    first_nonce: int,
    block: int,
    roles: Mapping[str, Address],
    parameters: Mapping[str, int],
    times: EscrowTimes,
) -> Deployment:
    """Create all contracts, those that exist already excepted.

    Args:
        sender: The deployer.
        chain_id: For the deployment file.
        first_nonce: Nonce of the deployer's first contract.
        block: A block before the first contract.
        roles: Accounts of admin, slasher, canceller and faucet.
        parameters: Changes to the defaults of `governance.parameters`.
        times: Of the escrow.

    Raises:
        Conflict: the deployer sent something else in between.
    """
    at = {name: contract_address(sender.account, first_nonce + i) for i, name in enumerate(ORDER)}
    arguments = _arguments(at["token"], roles, parameter_values(parameters), times)
    for name in ORDER:
        await sender.deploy(f"deploy:{name}", creation_code(ARTIFACTS[name], arguments[name]))
        if not await sender.has_code(at[name]):
            raise Conflict(f"{name} is not where it should be: use a deployer of its own")
    return Deployment(chain_id=chain_id, block=block, **{name: at[name] for name in NAMES})


def creation_code(name: str, arguments: tuple[Any, ...]) -> bytes:
    """Creation code of contract `name` with its encoded constructor arguments."""
    compiled = artifact(name)
    constructors = [entry["inputs"] for entry in compiled.abi if entry["type"] == "constructor"]
    inputs: list[dict[str, Any]] = constructors[0] if constructors else []
    return compiled.creation + abi_encode([_type(entry) for entry in inputs], arguments)


def _type(entry: Mapping[str, Any]) -> str:
    kind = str(entry["type"])
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(_type(component) for component in entry["components"])
    return f"({inner}){kind.removeprefix('tuple')}"


def _arguments(
    token: Address, roles: Mapping[str, Address], values: list[int], times: EscrowTimes
) -> dict[str, tuple[Any, ...]]:
    return {
        "token": (roles["faucet"], FAUCET_CALL_CAP, FAUCET_ACCOUNT_CAP),
        "parameters": (roles["admin"], values),
        "seals": (),
        "escrow": (token, roles["slasher"], roles["canceller"], astuple(times)),
    }


async def run(settings: DeploySettings) -> Deployment:
    """Deploy as the settings say and write the deployment file, atomically."""
    folder = settings.contracts.parent
    folder.mkdir(parents=True, exist_ok=True)
    roles = {  # accounts with powers of their own (contracts/solidity/README.md, Roles)
        role: load_or_create_wallet(settings.keys / f"{role}.json").account
        for role in ("admin", "slasher", "canceller", "faucet")
    }
    store = SqliteTransactions(folder / "deployer.db")
    async with ChainConnection(settings.rpc_url) as chain:
        deployer = load_or_create_wallet(settings.keys / "deployer.json")
        chain_id = await chain.chain_id()
        times = escrow_times(chain_id, settings.escrow_times)
        await store.need_chain(chain)
        begun = await store.since(deployer.account, 0)
        first = begun[0].nonce if begun else await chain.nonce(deployer.account)
        deployment = await deploy(
            Sender(chain, deployer, store, chain_id),
            chain_id=chain_id,
            first_nonce=first,
            block=0 if first == 0 else (await chain.head()).number,
            roles=roles,
            parameters=settings.chain_parameters,
            times=times,
        )
    store.close()
    draft = settings.contracts.with_suffix(".new")
    draft.write_text(deployment.encoded())
    os.replace(draft, settings.contracts)
    return deployment


def main() -> int:
    """Entry point."""
    try:
        deployment = asyncio.run(run(settings_of(DeploySettings)))
    except TallystickError as error:
        print(f"error: {error}", file=sys.stderr)
        return 8
    print(f"escrow 0x{deployment.escrow.hex()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
