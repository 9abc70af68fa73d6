"""`tallystick provider`: offer this machine and work for pay."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import Malformed, WrongConfiguration
from tallystick.sdk.folders import HomeSettings
from tallystick.sdk.job_file import tokens

app = typer.Typer(no_args_is_help=True, help="Offer this machine's compute and work for pay.")


@app.callback()
def provider() -> None:
    """Offer this machine's compute and work for pay."""


@app.command()
def start(
    ask: Annotated[str, typer.Option("--ask", help="Tokens per PFLOP, at least.")],
    stake: Annotated[str, typer.Option("--stake", help="Tokens to hold staked.")] = "10",
    market: Annotated[str | None, typer.Option("--market", help="URL of the market.")] = None,
    home: Annotated[Path | None, typer.Option("--home", help="Wallet, journals, logs.")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of a peer.", min=1)] = 1,
    memory: Annotated[int | None, typer.Option(help="MiB to offer; measured if absent.")] = None,
) -> None:
    """Stake, offer, and work for whatever job is matched, until Ctrl-C.

    Example: tallystick provider start --market http://127.0.0.1:8420 --ask 1000

    Started again with the same --home it goes on where it stopped.
    """
    price, amount = _tokens("--ask", ask), _tokens("--stake", stake)
    settings = HomeSettings()
    asyncio.run(
        _start(
            market or settings.market,
            home or settings.home / "provider",
            PricePerPflop(price),
            BaseUnits(amount),
            threads,
            memory,
        )
    )


async def _start(
    market: str,
    home: Path,
    price: PricePerPflop,
    stake: BaseUnits,
    threads: int,
    memory: int | None,
) -> None:
    # Imported here: they need the extra `provider`, and take seconds that --help must not.
    from tallystick.provider.agent import Agent, Ask
    from tallystick.provider.folder import ProviderFolder
    from tallystick.sdk.client import MarketClient

    folder = ProviderFolder(home)
    try:
        measured = _probe(folder.home)
        ask = Ask(
            price=price,
            stake=stake,
            device_class=measured["device_class"],
            memory_bytes=memory * 2**20 if memory else measured["memory_bytes"],
            flops_per_second=measured["flops_per_second"],
            bandwidth=10**8,
            threads=threads,
        )
        async with MarketClient(market) as client:
            agent = Agent(
                client=client,
                folder=folder,
                wallet=folder.wallet(),
                session=folder.agent_session(),
                ask=ask,
                peer_argv=(sys.executable, "-m", "tallystick.provider.peer"),
                environment=dict(os.environ),
                say=lambda line: typer.echo(line, err=True),
            )
            await _until_stopped(agent.run())
    finally:
        folder.close()


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        typer.echo("stopped; the same command resumes", err=True)


def _probe(home: Path) -> dict[str, Any]:
    """Measure once; the result is kept, because equal claims make equal offers."""
    path = home / "probe.json"
    if not path.exists():
        done = subprocess.run(
            [sys.executable, "-m", "tallystick.provider.probe"], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise WrongConfiguration(
                "this machine cannot compute: install the extra `provider` "
                f"(pip install 'tallystick[provider]'); {done.stderr.strip()[-300:]}"
            )
        path.write_text(done.stdout)
    measured: dict[str, Any] = json.loads(path.read_text())
    return measured


def _tokens(option: str, text: str) -> int:
    try:
        amount = tokens(text)
    except ValueError as error:
        raise Malformed(f"{option} {text}: {error}") from error
    return amount
