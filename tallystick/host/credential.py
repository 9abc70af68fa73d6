"""`python -m tallystick.host.credential NAME [OWNER]`: the credential of a host of this market.

Run by the operator, whose `host-token` lies in the folder `TALLYSTICK_KEYS`; it is printed for the
machine on which the host runs. A host with an owner (an account, 0x...) may judge contests to which
neither its owner nor a coordinator of its own is a party.
"""

import sys

from contracts.settings import settings_of
from contracts.terms.errors import TallystickError
from contracts.terms.typed_names import parse_address
from market.bodies.signing import HostCredential
from tallystick.host.settings import OperatorSettings, operator_token


def made(arguments: list[str]) -> str:
    """The credential that is asked for.

    Raises:
        Malformed: the owner is no account.
        WrongConfiguration: the operator's token is not here.
    """
    name, *rest = arguments
    owner = parse_address(rest[0]) if rest else None
    token = operator_token(settings_of(OperatorSettings))
    return HostCredential(name, owner).shown(token)


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) not in (1, 2) or not arguments[0]:
        print("usage: python -m tallystick.host.credential NAME [OWNER]", file=sys.stderr)
        return 2
    try:
        print(made(arguments))
    except TallystickError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
