"""`tallystick provider`: offer this machine and work for pay."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.amounts import (
    UINT64_MAX,
    UINT96_MAX,
    BaseUnits,
    PricePerPflop,
    format_tokens,
    read_tokens,
)
from contracts.terms.errors import Malformed
from contracts.terms.ids import AddressField, Digest
from market.bodies.base import Body
from market.bodies.routes import GET_NETWORK, GET_SLASH, POST_ANSWER
from market.bodies.signing import answer_digest
from market.bodies.slashes import AnswerSlash, SlashView
from tallystick.cli.options import (
    Market,
    ProviderHome,
    market_url,
    parse_digest,
    provider_home,
    typed,
)
from tallystick.cli.options import ask as ask_market
from tallystick.cli.output import notice, shows
from tallystick.cli.provider_money import (
    quit_command,
    settle_all_command,
    settle_command,
    withdraw_command,
    withdraw_offer_command,
)
from tallystick.cli.provider_status import drain_command, earnings_command, status_command
from tallystick.cli.wallet import account_in, open_or_create, open_wallet
from tallystick.provider.background import AgentLog, log_of, until_stopped
from tallystick.provider.background import detach as go_on
from tallystick.provider.folder import ProviderFolder, keystore_in
from tallystick.provider.machine import AUTO, MAX_NICE, NICE, WISH, Machine, listen_address
from tallystick.resources import CORE, Resources
from tallystick.sdk.client import MarketClient
from tallystick.sdk.convictions import state_of_slash
from tallystick.sdk.folders import HomeSettings
from tallystick.sdk.http import http_url
from tallystick.sdk.job_file import span

app = typer.Typer(no_args_is_help=True, help="Offer this machine's compute and work for pay.")


class Stopped(Body):
    """Whose agent has stopped, or with a `pid` goes on; it may have had no time for an account."""

    account: AddressField | None
    home: str
    pid: int | None


def _stopped_lines(stopped: Stopped) -> list[str]:
    if stopped.pid is None:
        return []
    log = log_of(Path(stopped.home))
    return [f"the agent goes on with pid {stopped.pid}; log {log}; `provider drain` ends it"]


@app.command()
@shows(Stopped, lines=_stopped_lines)
def start(
    ask: Annotated[
        str | None, typer.Option("--ask", help="Tokens per PFLOP, at least; none: no offer.")
    ] = None,
    stake: Annotated[
        str, typer.Option("--stake", help="Tokens to hold in the escrow, to be bonded in jobs.")
    ] = "10",
    claim_at: Annotated[
        str, typer.Option("--claim-at", help="Tokens worth a claim while a job goes on.")
    ] = "10",
    market: Market = None,
    home: Annotated[Path | None, typer.Option("--home", help="Wallet, journals, logs.")] = None,
    threads: Annotated[
        int,
        typer.Option(
            help="CPU threads of a peer; one in checked jobs of local steps.", min=1, max=1024
        ),
    ] = 1,
    memory: Annotated[
        int | None,
        typer.Option(help="MiB to offer at most; its share if absent.", min=64, max=2**32),
    ] = None,
    cores: Annotated[
        float | None,
        typer.Option(help="Cores to offer at most; its share if absent.", min=0.001, max=1024),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Measured, offered and computed on: auto, cpu, cuda, cuda:N.",
            envvar="TALLYSTICK_PEER_DEVICE",
        ),
    ] = AUTO,
    window: Annotated[
        str, typer.Option(help="How long an offer stands; longer jobs do not get it.")
    ] = "30d",
    nice: Annotated[
        int,
        typer.Option(
            help="How far its peers stand back for everything else here, as nice(1); 0: not.",
            envvar="TALLYSTICK_PEER_NICE",
            min=0,
            max=MAX_NICE,
        ),
    ] = NICE,
    drain: Annotated[
        str, typer.Option(help="How long peers may take to leave their jobs on Ctrl-C.")
    ] = "30s",
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address of this machine where other providers' peers reach its own. Default: "
            "that on the way to a market in a private network, else none.",
        ),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Audit other owners' work for pay when drawn.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on without this terminal; `drain` ends it.")
    ] = False,
    rpc: Annotated[
        str | None,
        typer.Option(
            "--rpc", help="Node that it reads and writes the chain by. Default: the market's."
        ),
    ] = None,
    behaviour: Annotated[str, typer.Option(hidden=True)] = "",
) -> Stopped:
    """Deposit, offer, and work for whatever job is matched, until Ctrl-C.

    Example: tallystick provider start --market http://127.0.0.1:8420 --ask 1000

    Ctrl-C lets its peers leave their jobs in order, as `provider drain` does; a second one ends
    them at once. A terminal that is closed does the same; with --detach the agent goes on without
    one, and the answer comes when it has begun, else when it has stopped. What it says is in
    logs/agent.log of its home as well. It works only while the chain says that it can be paid,
    claims by itself, and quits jobs that are over.
    Started again with the same --home it goes on where it stopped. An offer is renewed when half of
    its window is over, and after a change of these options, but never while it is leased.
    """
    if ask is None and not audit:
        raise Malformed("say what is offered: --ask PRICE for this machine, --audit, or both")
    price = None if ask is None else PricePerPflop(_tokens("--ask", ask, 1, UINT64_MAX))
    amount = BaseUnits(_tokens("--stake", stake, 0, UINT96_MAX))
    worth_a_claim = BaseUnits(_tokens("--claim-at", claim_at, 1, UINT96_MAX))
    folder = provider_home(home)
    if detach:
        pid = go_on(folder, [each for each in sys.argv[1:] if each != "--detach"])
        return Stopped(account=account_in(keystore_in(folder)), home=str(folder), pid=pid)
    device, span_of_offers = _device(device), typed("--window", window, span)
    drained_within = typed("--drain", drain, span)
    node = None if rpc is None else http_url(rpc, "a node")

    async def work() -> None:
        if behaviour:
            from tallystick.gym.registry import plans

            plans(behaviour)  # a wrong one is told here, not by each of its peers
        # Imported here: they need the extra `provider`, and take seconds that --help must not.
        from contracts.chain.connection import ChainConnection
        from tallystick.provider.agent import Agent, Ask
        from tallystick.provider.measured import TASKS, cores_to_share, measured, memory_to_share
        from tallystick.up.forkserver import starter
        from tallystick.up.ports import checked_address

        settings = HomeSettings()
        address = None if listen is None else checked_address(listen)
        owned = ProviderFolder(folder)
        try:
            async with MarketClient(market_url(market)) as client:
                # a wrong URL is told at once; later it is waited for
                network = await client.call(GET_NETWORK)
                if node is not None:
                    async with ChainConnection(node) as chain:
                        await chain.need_chain(network.chain_id, network.genesis)
                resources = Resources()
                resources.need_tasks(TASKS)
                found = await measured(owned.home / "probe.json", device, resources, log)
                machine = Machine(
                    settings.home_or(owned.home),
                    found.device,
                    memory=memory_to_share(found, resources),
                    cores=cores_to_share(found, resources),
                    speed=found.flops_per_second,
                    cap=None if memory is None else memory * 2**20,
                    cap_cores=None if cores is None else round(cores * CORE),
                )
                offered = Ask(
                    price=PricePerPflop(1) if price is None else price,
                    stake=amount,
                    claim_at=worth_a_claim,
                    device_class=found.device_class,
                    memory_bytes=found.memory_bytes,
                    flops_per_second=found.flops_per_second,
                    bandwidth=10**8,
                    threads=threads,
                    window=span_of_offers,
                    device=found.device,
                )
                usual = listen_address(client.url, network.rpc_url)
                await Agent(
                    client=client,
                    folder=owned,
                    wallet=open_or_create(keystore_in(owned.home)),
                    ask=offered,
                    environment=_process_environment(address, usual, nice, behaviour),
                    say=log,
                    start=starter(settings.forkserver),
                    drain=drained_within,
                    offers=price is not None,
                    audits=audit,
                    machine=None if price is None else machine,
                    rpc=node,
                ).run()
        finally:
            owned.close()

    log = AgentLog(folder, notice)
    try:
        asyncio.run(until_stopped(work(), log))
    finally:
        log.close()
    keystore = keystore_in(folder)
    account = account_in(keystore) if keystore.exists() else None
    return Stopped(account=account, home=str(folder), pid=None)


def _process_environment(
    listen: str | None, usual: str, nice: int, behaviour: str
) -> dict[str, str]:
    """Environment of the peers and audits that the agent starts.

    They read what strangers send, and open no keystore: they get no passphrase.
    """
    secret = ("TALLYSTICK_PASSPHRASE", "TALLYSTICK_PASSPHRASE_FILE")
    found = {"TALLYSTICK_PEER_LISTEN": f"{usual}:0"}
    found |= {name: value for name, value in os.environ.items() if name not in secret}
    found |= {f"TALLYSTICK_{process}_NICE": str(nice) for process in ("PEER", "AUDIT")}
    found |= {"TALLYSTICK_PEER_LISTEN": f"{listen}:0"} if listen else {}
    return found | ({"TALLYSTICK_PEER_BEHAVIOUR": behaviour} if behaviour else {})


@app.command()
@shows(SlashView, lines=lambda slash: [state_of_slash(slash)])
def answer(
    evidence: Annotated[str, typer.Argument(help="Of the slash, as this provider was told it.")],
    bundle: Annotated[Path, typer.Argument(help="File that speaks for you.")],
    market: Market = None,
    home: ProviderHome = None,
) -> SlashView:
    """Answer a slash of this provider's stake: a file is shown beside it, signed by its wallet.

    Get the evidence first (tallystick job evidence) and run it again (tallystick audit rerun). An
    answer stops nothing: a slash that is announced can be dropped by the canceller, who reads it.

    Example: tallystick provider answer EVIDENCE own.bundle
    """
    name, keystore = parse_digest(evidence, "evidence"), keystore_in(provider_home(home))
    return ask_market(market, lambda client: _answer(client, name, bundle, keystore))


async def _answer(
    client: MarketClient, evidence: Digest, bundle: Path, keystore: Path
) -> SlashView:
    await client.call(GET_SLASH, evidence=evidence)  # before anything large is sent
    wallet = open_wallet(keystore)
    name = await client.put_file(bundle, by=wallet)
    signature = wallet.sign_digest(answer_digest(evidence, name))
    body = AnswerSlash(answer=name, signature=signature)
    return await client.call(POST_ANSWER, body, evidence=evidence)


def _device(wanted: str) -> str:
    if not WISH.fullmatch(wanted):
        raise Malformed(f"--device {wanted:.20}: it is auto, cpu, cuda, or cuda:N")
    return wanted


def _tokens(option: str, text: str, least: int, most: int) -> int:
    amount = typed(option, text, read_tokens)
    if not least <= amount <= most:
        raise Malformed(
            f"{option} {text:.80}: between {format_tokens(BaseUnits(least))} and "
            f"{format_tokens(BaseUnits(most))} tokens"
        )
    return amount


app.command("status")(status_command)
app.command("earnings")(earnings_command)
app.command("settle")(settle_command)
app.command("settle-all")(settle_all_command)
app.command("quit")(quit_command)
app.command("withdraw")(withdraw_command)
app.command("withdraw-offer")(withdraw_offer_command)
app.command("drain")(drain_command)
