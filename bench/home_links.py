"""What do local steps gain over homes' lines?

`python -m bench.home_links [--steps N] [--rounds N] [--audit-rate N] [--quick]` runs three jobs to
their ends, one after the other, each of a coordinator and four peers on five machines: network
namespaces on one bridge. The cable of each takes 25 ms each way, so 100 ms there and back between
any two, and 50 Mbit/s each way. Two of the peers are behind routers that masquerade, and nobody can
dial them.

    every_step  two stages of two peers, fp32
    local       four peers, H inner steps a round, shards of 4 bits (seeded4); then the same again
                with `overlap`, peers at work while rounds are exchanged

Both train the model of `bench.local_steps` (0.86 million parameters, 60 tokens a row) on equally
many tokens a step, checked by its peers. Every process is real (`home_links_process`); there is no
market, so nothing is ordered, paid or claimed. Tokens a second are those of the rounds after the
first. Bytes are packets that left a machine, headers included. "Through the coordinator" are calls
that it passed on to a peer that could not be dialled, of all bytes that peers sent.

Needs root, and the commands ip, tc and nft (packages iproute2 and nftables).
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.home_links_process import HIDDEN, PEERS, ROLES, HomeJob
from bench.measuring import MICROSECONDS, Processes, about, limit, markdown, parsed, parser_of, tell
from contracts.terms.messages import MILLION
from tests.support.corpora import builtin_text, cut_corpus
from tests.support.namespaces import Site, network, packets_as_sent, why_not
from tests.support.swarm_job import COORDINATOR
from training.stages.exact import device_class

DELAY, RATE = 0.025, "50mbit"  # of a cable, each way
CORPUS_BYTES = 1_000_000


def measure(job: HomeJob, folder: Path, sites: Mapping[str, Site]) -> dict[str, Any]:
    """One job from its first to its last round."""
    job.write(folder)
    swarm = Processes("bench.home_links_process", folder, sites)
    before = {role: sites[role].bytes_sent() for role in ROLES}
    try:
        for role in ROLES:
            swarm.start(role)
        for ended in range(job.rounds):
            what = f"round {ended + 1}"
            swarm.wait(what, partial(is_sealed, swarm, ended + 1))
            tell(f"{job.name}: {what}")
        swarm.wait("the end", lambda: all(p.poll() == 0 for p in swarm.running.values()))
    finally:
        swarm.kill()
    sent = {role: sites[role].bytes_sent() - before[role] for role in ROLES}
    return row(job, swarm, sent)


def is_sealed(swarm: Processes, rounds: int) -> bool:
    """Whether so many are."""
    return len(swarm.lines(COORDINATOR, "seal_stored")) >= rounds


def row(job: HomeJob, swarm: Processes, sent: Mapping[str, int]) -> dict[str, Any]:
    """Of the table."""
    seals = swarm.lines(COORDINATOR, "seal_stored")
    updates = [line for line in seals if line["loss"] is not None]
    tokens = job.tokens_a_round
    seconds = seals[-1]["seconds"] - seals[0]["seconds"]
    [relayed] = swarm.lines(COORDINATOR, "relayed")
    thousands = job.rounds * tokens / 1000
    [*_, validated] = swarm.lines(COORDINATOR, "validated")
    audited = [line for peer in PEERS for line in swarm.lines(peer, "audited")]
    ahead = [line for peer in PEERS for line in swarm.lines(peer, "ahead")]
    passes = [swarm.lines(peer, "item_forward", "item_done") for peer in PEERS]
    computing = sum(line.get("took_us", 0) for own in passes for line in own) * MICROSECONDS
    return {
        "": job.name,
        "rounds": job.rounds,
        "seconds a round": round(seconds / (job.rounds - 1), 2),
        "of them a peer computes": round(computing / len(PEERS) / job.rounds, 2),
        "tokens": job.rounds * tokens,
        "tokens/s": round((len(updates) - 1) * tokens / seconds, 1),
        **{f"{role}, kB / 1,000 tokens": round(sent[role] / thousands / 1000, 1) for role in ROLES},
        "through the coordinator, %": round(
            100 * relayed["bytes"] / sum(sent[peer] for peer in PEERS), 1
        ),
        "first loss": updates[0]["loss"] / MILLION,
        "last loss": updates[-1]["loss"] / MILLION,
        "held out": validated["loss"] / MILLION,
        "done ahead, %": round(
            100 * sum(line["items"] * line["counts"] for line in ahead) / job.num_items, 1
        ),
        "claims replayed": sum(line["kind"] == "work" for line in audited),
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of every_step")
    parser.add_argument("--rounds", type=int, default=20, help="of local")
    parser.add_argument("--inner-steps", type=int, default=50, help="H")
    parser.add_argument("--segments", type=int, default=5, help="in which H steps are done")
    parser.add_argument("--rows", type=int, default=4, help="of a peer and step")
    parser.add_argument("--audit-rate", type=int, default=50_000, help="millionths; 0: unchecked")
    parser.add_argument("--seed", type=int, default=1)
    options = parsed(parser, minutes=40, steps=4, rounds=3, inner_steps=5)
    if (reason := why_not()) is not None:
        raise SystemExit(f"home_links: {reason}")
    if missing := [name for name in ("tc", "nft") if shutil.which(name) is None]:
        raise SystemExit(f"home_links: needs the commands {missing}")
    rows = []
    with limit(options.minutes, "home_links"), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tallystick-homes-")))
        sites = stack.enter_context(network(*ROLES, behind_routers=HIDDEN))
        for site in sites.values():
            packets_as_sent(site)
            stack.enter_context(site.slow(delay=DELAY, rate=RATE))
        corpus = cut_corpus(builtin_text(CORPUS_BYTES), shard_bytes=32_768)
        local = options.inner_steps, options.segments
        for how, overlap, rounds in (
            ((0, 1), False, options.steps),
            (local, False, options.rounds),
            (local, True, options.rounds),
        ):
            job = HomeJob(
                *how,
                overlap,
                rounds,
                options.rows,
                options.audit_rate,
                options.seed,
                options.quick,
                device_class(torch.device("cpu")),
                corpus.manifest.digest().hex(),
            )
            own = folder / job.name
            corpus.write(own / "blobs")
            rows.append(measure(job, own, sites))
            tell(str(rows[-1]))
    print(markdown(rows))
    speeds = [each["tokens/s"] for each in rows]
    ratios = [round(speed / speeds[0], 1) for speed in speeds[1:]]
    print(f"tokens/s of local over every_step: {ratios[0]}, with overlap {ratios[1]}")
    asked = {name: getattr(options, name) for name in ("segments", "rows", "audit_rate", "seed")}
    print(json.dumps({"ratios": ratios, "rows": rows} | about(**asked)))


if __name__ == "__main__":
    main()
