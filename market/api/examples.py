"""An example of every body, made from its fields, so that none can be out of date.

What a value looks like is told by its type; a name in the table below says it better. Digests and
signatures are made of the field's name: they have the right form and belong to nothing.
"""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import PlainSerializer

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from market.bodies.base import Body

_BY_TYPE = object()  # the type says it better than the table
_NAMED: Mapping[str, object] = {
    "accept_ends": 1_777_636_830_000,
    "address": "127.0.0.1:9431",
    "amount": "2500000",
    "at": 1_777_636_800_000,
    "case": 3,
    "chain_id": 31_337,
    "clock": 1_777_636_800_000,
    "convicted_at": 1_777_636_800_000,
    "constraint": "price",
    "coordinator_address": "127.0.0.1:9431",
    "created_at": 1_777_636_800_000,
    "cursor": f"{digest('example', b'job').hex()}:12",
    "credit": "due:1a642f0e3c3af545e7acbd38b07251b3990914f1",
    "deadline": 1_777_723_200,
    "debit": "vested:1a642f0e3c3af545e7acbd38b07251b3990914f1",
    "decimals": 6,
    "device_class": "cpu/x86_64/AVX2/torch-2.13.0",
    "epoch_seconds": 20,
    "event": "epoch:12",
    "expires_at": 1_777_723_200_000,
    "PostCheckpoint.failure": "",
    "failure": None,
    "flops": "4500000000000000",
    "flops_per_second": 12_000_000_000,
    "gas": "1000000000000000000",
    "heard_at": 1_777_636_800_000,
    "host": "host-1",
    "loss_millionths": 3_412_907,
    "memory_bytes": 17_179_869_184,
    "name": "tiny",
    "next": None,
    "nonce": "0199f2c1a4d05f0e9d3c7b21a8e4c60d17b2f95d3a8c41e7b0962f58",
    "num_messages": 120,
    "parameters": {"epoch_length": "20", "challenge_window": "5"},
    "price": "100000000000",
    "rate": "0x1/0x14",
    "reasons": [],
    "rpc_url": "http://127.0.0.1:8545",
    "spread": "-20000000000",
    "spec": encode({"kind": "job_spec.v1"}).hex(),
    "step": 40,
    "steps": 200,
    "symbol": "TALLY",
    "tokens_per_second": 18_250,
    "until": 1_777_636_830_000,
    "validation_millionths": 3_398_112,
    "version": "1",
    "window_ends": 1_777_636_830,
    "would_fit": "120000000000",
    "JobView.spec": {"kind": "job_spec.v1", "name": "tiny"},
    "AccountView.token": "7500000000",
    "AnchoredEvent.steps": _BY_TYPE,
    "CoinEvent.steps": _BY_TYPE,
    "CoinsView.steps": _BY_TYPE,
    "DrawnView.name": _BY_TYPE,
    "DrawView.name": _BY_TYPE,
    "LevelView.flops_per_second": _BY_TYPE,
    "QuoteView.flops_per_second": _BY_TYPE,
    "SpendView.steps": _BY_TYPE,
    "StageQuoteView.flops_per_second": _BY_TYPE,
    "StepLinesView.step": _BY_TYPE,
    "StepsView.steps": _BY_TYPE,
    "ContractsView.parameters": _BY_TYPE,
    "ContractsView.token": _BY_TYPE,
    "CoordinatorClaim.address": _BY_TYPE,
    "NetworkView.token": _BY_TYPE,
    "OfferView.expires_at": 1_777_723_200,
    "PeerChecksView.convicted_at": None,
    "ReportView.repeat": None,  # a body of its own type
}
"""By `Class.field`, else by field."""


def example_of(cls: type[Body]) -> dict[str, object]:
    """A body of type `cls`, as its JSON."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: _field(cls.__name__, name, hints[name]) for name in cls.model_fields}


def _field(owner: str, name: str, hint: Any) -> object:
    named = _NAMED.get(f"{owner}.{name}", _NAMED.get(name, _BY_TYPE))
    return _value(name, hint, ()) if named is _BY_TYPE else named


def _value(name: str, hint: Any, metadata: tuple[Any, ...]) -> object:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(name, arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, types.UnionType):
        return _value(name, arguments[0], metadata)
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return [_value(name, arguments[0], ())]
    if origin is dict:
        return {}
    if isinstance(hint, type) and issubclass(hint, Body):
        return example_of(hint)
    return _plain(name, hint, metadata)


def _plain(name: str, hint: Any, metadata: tuple[Any, ...]) -> object:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if any(isinstance(each, PlainSerializer) for each in metadata):
        return "2500000"
    if hint is bytes:
        return _hex(name, _least(metadata, "min_length", 64))
    if hint is bool:
        return True
    if hint is int:
        return max(1, _least(metadata, "ge", 1))
    return "1/1024" if name in ("strangers", "largest_owner", "whole_stage") else name


def _hex(name: str, length: int) -> str:
    if length <= 1:  # not of one length: an encoded message
        return encode({"message": {"kind": f"{name}.v1"}, "signature": bytes(65)}).hex()
    found = b""
    while len(found) < length:
        found += digest("example", name.encode() + found)
    return found[:length].hex()


def _least(metadata: tuple[Any, ...], name: str, otherwise: int) -> int:
    found = [getattr(each, name) for each in metadata if getattr(each, name, None) is not None]
    return int(found[0]) if found else otherwise
