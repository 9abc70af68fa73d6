"""What `up --listen` tells people, and what it refuses to."""

import pytest

from contracts.terms.errors import Malformed
from tallystick.up.ports import checked_address


@pytest.mark.parametrize("text", ["0.0.0.0", "224.0.0.1", "market.local", "::1", "", "1.2.3.4:80"])
def test_checked_address__none_that_others_can_be_told__is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="--listen"):
        checked_address(text)
