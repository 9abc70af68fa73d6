"""Which key can make which call? The table of the threat model, read from the contracts.

A call belongs to whom its body checks: the sender, or the signer of what it is shown. A call that
checks nobody, or checks only while a condition holds, belongs to anyone (too).
"""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "contracts/solidity/src"
CONTRACTS = ("JobEscrow", "SealAnchor", "Parameters", "TestToken")
CHECKS = {
    r"(_authorise|_checkSigner)\(\s*header\.poster\b": "poster",
    r"msg\.sender != header\.poster\b": "poster",
    r"(_authorise|_checkSigner|_checkSeal)\(\s*header\.coordinator\b": "coordinator",
    r"(_authorise|_checkSigner)\(\s*(it\.)?account\b": "account",
    r"_take\(msg\.sender\b": "account",
    r"msg\.sender != slasher\b": "slasher",
    r"msg\.sender != canceller\b": "canceller",
    r"onlyAdmin\b|msg\.sender != admin\b": "admin",
    r"msg\.sender != minter\b": "minter",
}
FOR_ANYONE_LATER = re.compile(r"msg\.sender != header\.poster && !over\b")
FUNCTION = re.compile(
    r"^    function (\w+)\(([^{;]*?)\)([^{;]*?)\{\n(.*?)^    \}", re.MULTILINE | re.DOTALL
)


def calls_by_key() -> dict[tuple[str, str], set[str]]:
    """(key, contract) to its calls."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for contract in CONTRACTS:
        source = re.sub(r"//.*", "", (SOURCES / f"{contract}.sol").read_text())
        for name, _, modifiers, body in FUNCTION.findall(source):
            if not re.search(r"\b(external|public)\b", modifiers) or "view" in modifiers:
                continue
            if "pure" in modifiers or "override" in modifiers:
                continue
            keys = {who for check, who in CHECKS.items() if re.search(check, modifiers + body)}
            if not keys or FOR_ANYONE_LATER.search(body):
                keys.add("anyone")
            for key in keys:
                found[key, contract].add(name)
    return dict(found)


def test_threat_model__table_of_keys__is_what_the_contracts_check() -> None:
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \| ((?:`\w+` ?)+)\|",
        (ROOT / "docs/threat-model.md").read_text(),
        re.MULTILINE,
    )
    table = {(key, contract): set(re.findall(r"\w+", calls)) for key, contract, calls in rows}

    assert table == calls_by_key()
