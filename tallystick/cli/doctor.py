"""`tallystick doctor`: is this machine fit, and if not, what helps?"""

from collections.abc import Iterator

import typer

from market.bodies.base import Body
from tallystick.cli.options import DataHome, Market, provider_home
from tallystick.cli.output import answer, shows
from tallystick.provider.fitness import examine_provider
from tallystick.sdk.folders import HomeSettings
from tallystick.up.doctor import Row, examine
from tallystick.up.foreground import forget_defaults
from tallystick.up.settings import read_settings

EXIT_UNFIT = 1


class Examined(Body):
    """All checks, in the order in which `up` would stumble over them."""

    ok: bool
    checks: tuple[Row, ...]


def _lines(examined: Examined) -> Iterator[str]:
    name = max(len(row.check) for row in examined.checks)
    wanted = max(len(row.wanted) for row in examined.checks)
    for row in examined.checks:
        mark = "ok  " if row.ok else "FAIL"
        yield f"{mark}  {row.check:<{name}}  {row.wanted:<{wanted}}  {row.found}"
        if row.remedy:
            yield f"{'':6}{'':<{name}}  -> {row.remedy}"


@shows(Examined, lines=_lines, rows="checks")
def app(
    home: DataHome = None,
    market: Market = None,
) -> None:
    """Check this machine: what is wanted, what was found, how to remedy it.

    The clock is compared with the market's: the one that --market names, which has to answer, else
    the usual one if it does. Exit codes: 0 fit, 1 something is wrong.

    Example: tallystick doctor --market http://127.0.0.1:8420
    """
    forget_defaults()
    rows = (
        *examine(read_settings(home)),
        *examine_provider(
            provider_home(None if home is None else home / "provider"),
            HomeSettings().market if market is None else market,
            must_answer=market is not None,
        ),
    )
    examined = Examined(ok=all(row.ok for row in rows), checks=rows)
    answer(examined)
    if not examined.ok:
        raise typer.Exit(EXIT_UNFIT)
