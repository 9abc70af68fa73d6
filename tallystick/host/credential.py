"""`python -m tallystick.host.credential NAME`: the credential of a host of this market.

Run by the operator, whose `host-token` lies in the folder `TALLYSTICK_KEYS`; it is printed for the
machine on which the host runs.
"""

import sys

from contracts.settings import settings_of
from contracts.terms.errors import TallystickError
from market.bodies.signing import HostCredential
from tallystick.host.settings import OperatorSettings, operator_token


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 1 or not arguments[0]:
        print("usage: python -m tallystick.host.credential NAME", file=sys.stderr)
        return 2
    try:
        token = operator_token(settings_of(OperatorSettings))
        print(HostCredential(arguments[0]).shown(token))
    except TallystickError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
