"""The stream of kept items: once, in order, by whom it binds; refused with a typed error else."""

import pytest

from contracts.governance.job import JobHistory, follow
from contracts.keys.wallet import Wallet
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.encoding import encode
from contracts.terms.history import Kept, decode_kept, encode_kept
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed, expect
from contracts.terms.work import RoundClosed
from market.domain.jobs import JobState
from market.service.coding import decode_pay
from market.service.histories import Histories
from market.service.rows import MessageRow, SealRow
from tests.support.history import DOMAIN, JobMaker, make_session, make_wallet, messages_of
from tests.support.market_world import World


async def count(world: World, job: JobId) -> int:
    return len(await world.rows(MessageRow, job=job))


async def refuse(world: World, maker: JobMaker, *items: Kept | bytes) -> Exception:
    """Post what must be refused; nothing of it may stay."""
    before = await count(world, maker.spec.job())
    encoded = [item if isinstance(item, bytes) else encode_kept(item) for item in items]
    with pytest.raises(Exception) as caught:  # the caller says which
        await world.store(maker, encoded)
    assert await count(world, maker.spec.job()) == before
    return caught.value


def resigned(seal: Signed[Seal], wallet: Wallet, **changed: object) -> Signed[Seal]:
    return wallet.sign(seal.message.model_copy(update=changed), DOMAIN)


async def test_store__in_pieces_and_again__equals_one_post(world: World) -> None:
    maker = await world.start_job()
    maker.seal_step()
    maker.seal_step(update=False)

    first = [await world.send(maker) for _ in range(2)]

    assert [each.known for each in first] == [1, len(maker.items)]
    rows = await world.rows(MessageRow, job=maker.spec.job(), order="sequence")
    assert [row.data for row in rows] == [encode_kept(item) for item in maker.items]
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))


async def test_store__item_by_item_with_every_fold_forgotten__is_the_same_history(
    world: World,
) -> None:
    maker = await world.start_job()
    maker.seal_step()

    for item in maker.items:
        world.histories = Histories(DOMAIN)
        await world.store(maker, [encode_kept(item)])

    history = JobHistory(DOMAIN)
    async with world.new_work() as work:
        for row in await work[MessageRow].where(job=maker.spec.job(), order="sequence"):
            history = follow(history, decode_kept(row.data))
    assert history.record == maker.record


async def test_store__seals__are_kept_with_their_pay(world: World) -> None:
    maker = await world.start_job()
    for step in range(4):
        maker.seal_step(last=step == 3)
        await world.send(maker)

    job, seal = maker.spec.job(), maker.seals[-1].seal
    (last,) = await world.rows(SealRow, job=job, last=True)
    assert decode_pay(last.pay) == maker.seals[-1].pay
    assert last.vested == seal.vested == seal.earned == last.earned > 0
    assert (await world.job(job)).state == JobState.FINISHED


async def test_store__what_follows_from_nothing__is_refused_and_nothing_is_kept(
    world: World,
) -> None:
    maker = await world.start_job()
    maker.seal_step()
    *before, last = maker.items
    (closed,) = messages_of(before, RoundClosed)
    seal = expect(last, Seal) if isinstance(last, Signed) else None
    assert seal is not None
    eve, root, more = make_wallet("eve"), Digest(b"\7" * 32), BaseUnits(seal.message.earned + 1)
    theirs = maker.lease(maker.members[0]).model_copy(
        update={"account": eve.account, "session_key": make_session("eve").key}
    )
    anchorer = maker.opening.model_copy(update={"anchorer": eve.account})

    unpaid = await refuse(world, maker, *before, resigned(seal, maker.coordinator, earned=more))
    other = await refuse(world, maker, maker.coordinator.sign(anchorer, DOMAIN))
    unknown = await refuse(world, maker, *before[:2], eve.sign(theirs, DOMAIN))
    stranger = await refuse(world, maker, *before, make_session("eve").sign(closed))
    await world.send(maker)
    second = await refuse(world, maker, resigned(seal, maker.coordinator, messages_root=root))
    forged = await refuse(world, maker, resigned(seal, eve, messages_root=root))

    assert isinstance(unpaid, errors.InvalidSeal) and unpaid.data["part"] == "earned"
    assert isinstance(other, errors.Conflict)
    assert other.data["would_fit"] == world.chain.anchorer.hex()
    assert [type(each) for each in (unknown, stranger, second, forged)] == [
        errors.Conflict, errors.BadSignature, errors.Equivocation, errors.BadSignature,
    ]  # fmt: skip


async def test_store__no_item__is_a_typed_refusal(world: World) -> None:
    maker = await world.start_job()
    malformed = (
        b"",
        b"\xc1",
        encode({"type": "signed", "message": b"x"}),
        encode({"type": "other"}),
    )

    assert [type(await refuse(world, maker, data)) for data in malformed] == [errors.Malformed] * 4
    assert isinstance(await refuse(world, maker, bytes(4 * 2**20 + 1)), errors.TooLarge)


async def test_store__unknown_version__is_unknown_version(world: World) -> None:
    maker = await world.start_job()
    message = maker.opening.value() | {"kind": "job_opening.v0"}
    item = encode({"type": "signed", "message": message, "signature": bytes(64)})

    assert isinstance(await refuse(world, maker, item), errors.UnknownVersion)
