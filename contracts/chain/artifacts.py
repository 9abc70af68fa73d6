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

    name: str
    abi: list[dict[str, Any]]
    creation: bytes
    runtime: bytes
    immutable_references: Mapping[str, list[dict[str, int]]]


@cache
def artifact(name: str) -> Artifact:
    """The shipped artifact of contract `name`."""
    text = (resources.files("contracts") / "abi" / f"{name}.json").read_text()
    raw = json.loads(text)
    return Artifact(
        name,
        raw["abi"],
        bytes.fromhex(raw["bytecode"].removeprefix("0x")),
        bytes.fromhex(raw["deployedBytecode"].removeprefix("0x")),
        raw["immutableReferences"],
    )


@dataclass(frozen=True)
class ErrorNames:
    """Selectors of custom errors to names and argument types."""

    by_selector: Mapping[bytes, tuple[str, tuple[str, ...]]]

    def explain(self, data: bytes) -> str:
        """`data` of a revert as text; hex when no contract of ours knows it."""
        known = self.by_selector.get(data[:4])
        if known is None:
            return f"0x{data.hex()}"
        name, types = known
        try:
            values = abi_decode(types, data[4:])
        except DecodingError:
            return f"{name}(0x{data[4:].hex()})"
        return f"{name}({', '.join(_text(value) for value in values)})"


@cache
def error_names() -> ErrorNames:
    """Errors of all our contracts and the two that Solidity itself throws."""
    found: dict[bytes, tuple[str, tuple[str, ...]]] = {}
    entries = [entry for name in CONTRACTS for entry in artifact(name).abi]
    plain = [("Error", ("string",)), ("Panic", ("uint256",))]
    named = [
        (entry["name"], tuple(item["type"] for item in entry["inputs"]))
        for entry in entries
        if entry["type"] == "error"
    ]
    for name, types in plain + named:
        found[keccak(f"{name}({','.join(types)})".encode())[:4]] = (name, types)
    return ErrorNames(found)


def _text(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
