"""Are the shipped artifacts what the sources compile to?

The hashes of the sources tell a stale artifact. At night all are compiled again, and must have the
same bytes: ABI, creation code, runtime code, places of immutables and storage layout.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from contracts.chain.artifacts import CONTRACTS
from tests.contracts.toolchain import ABI, SOLIDITY, build

NAMES = sorted(CONTRACTS)
MAX_CODE_BYTES = 24_576  # EIP-170
MAX_LINES = 600


def _artifact(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ABI / f"{name}.json").read_text())
    return found


@pytest.mark.nightly
def test_artifacts__recompiled__are_the_same_files(tmp_path: Path) -> None:
    build(tmp_path)

    compiled = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert sorted(compiled) == [f"{name}.json" for name in NAMES]
    assert compiled == {path.name: path.read_bytes() for path in ABI.glob("*.json")}


@pytest.mark.parametrize("name", NAMES)
def test_artifact__source_hashes__are_fresh(name: str) -> None:
    hashes = _artifact(name)["sourceSha256"]

    found = {path: hashlib.sha256((SOLIDITY / path).read_bytes()).hexdigest() for path in hashes}

    assert f"src/{name}.sol" in hashes
    assert found == hashes


@pytest.mark.parametrize("name", NAMES)
def test_artifact__code__is_small_and_carries_no_metadata(name: str) -> None:
    artifact = _artifact(name)

    code = bytes.fromhex(artifact["deployedBytecode"].removeprefix("0x"))

    assert 0 < len(code) <= MAX_CODE_BYTES
    assert artifact["settings"]["metadata"] == {"bytecodeHash": "none", "appendCBOR": False}
    assert b"solc" not in code[-64:]


@pytest.mark.parametrize("path", sorted((SOLIDITY / "src").glob("*.sol")), ids=lambda p: p.name)
def test_source__file__is_short_and_pins_its_compiler(path: Path) -> None:
    text = path.read_text(encoding="ascii")

    assert len(text.splitlines()) < MAX_LINES
    assert "pragma solidity =0.8.37;" in text
    assert "delegatecall" not in text and "selfdestruct" not in text


def test_package__npm__pins_exactly() -> None:
    package = json.loads((SOLIDITY / "package.json").read_text())

    wanted = {**package["dependencies"], **package["devDependencies"]}

    assert wanted == {
        "@foundry-rs/anvil": "1.7.1",
        "@foundry-rs/forge": "1.7.1",
        "@openzeppelin/contracts": "5.7.0",
        "solc": "0.8.37",
    }
