"""What was signed for a top-up may still be run, so its name is kept until it was."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from contracts.chain.connection import Call
from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import Address, JobId
from tallystick.sdk import on_chain
from tests.support.history import make_wallet


@pytest.mark.parametrize("is_stored", [False, True])
async def test_top_up__node_is_suddenly_of_another_chain__forgets_only_what_was_never_signed(
    is_stored: bool, tmp_path: Path
) -> None:
    call = Call(Address(b"e" * 20), b"pay")
    refusal = WrongConfiguration("the node is of another chain")  # tests/integration/chain
    own = SimpleNamespace(
        sender=SimpleNamespace(
            account=make_wallet("ann").account,
            resend=AsyncMock(),
            send=AsyncMock(side_effect=refusal),
        ),
        store=SimpleNamespace(find=AsyncMock(side_effect=[None, "stored" if is_stored else None])),
        fund=AsyncMock(return_value=5),
        permitted=AsyncMock(return_value=call),
        contracts=SimpleNamespace(
            escrow=SimpleNamespace(top_up=lambda *_: call),
            chain=SimpleNamespace(head=AsyncMock()),
        ),
    )
    path, pending = tmp_path / "topup-job.json", on_chain.Pending(name="first", amount=5)
    path.write_text(pending.model_dump_json())

    with pytest.raises(WrongConfiguration):
        await on_chain._pay(cast(Any, None), cast(Any, own), JobId(b"j" * 32), pending, path)

    assert path.exists() == is_stored
