"""The compiled contracts that we ship, and the names of their errors. No web3."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from eth_abi.abi import decode as abi_decode
from eth_abi.exceptions import DecodingError

from contracts.terms.digest import keccak

CONTRACTS = ("TestToken", "Parameters", "JobEscrow", "SealAnchor")


@dataclass(frozen=True)
class Artifact:
    """A compiled contract."""

    abi: list[dict[str, Any]]
    creation: bytes


@cache
def artifact(name: str) -> Artifact:
    """The shipped artifact of contract `name`."""
    raw = compiled(name)
    return Artifact(raw["abi"], bytes.fromhex(raw["bytecode"].removeprefix("0x")))


def compiled(name: str) -> dict[str, Any]:
    """All that the compiler said of contract `name`, as we ship it."""
    text = (resources.files("contracts") / "abi" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def explain(data: bytes) -> str:
    """`data` of a revert as text, e.g. `NotFree(3, 17)`; hex when no contract of ours knows it."""
    known = _errors().get(data[:4])
    if known is None:
        return f"0x{data.hex()}"
    name, types = known
    try:
        values = abi_decode(types, data[4:])
    except DecodingError:
        return f"{name}(0x{data[4:].hex()})"
    return f"{name}({', '.join(_text(value) for value in values)})"


@cache
def _errors() -> Mapping[bytes, tuple[str, tuple[str, ...]]]:
    """Names and argument types by selector: of our contracts' errors, and of Solidity's two."""
    named = [("Error", ("string",)), ("Panic", ("uint256",))]
    for entry in (each for name in CONTRACTS for each in artifact(name).abi):
        if entry["type"] == "error":
            named.append((entry["name"], tuple(each["type"] for each in entry["inputs"])))
    return {
        keccak(f"{name}({','.join(types)})".encode())[:4]: (name, types) for name, types in named
    }


def _text(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
