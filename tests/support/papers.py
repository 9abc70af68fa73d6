"""Who signs a job of a test, and what they have signed before it begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.keys.wallet import Session, Wallet
from contracts.terms.ids import ZERO_DIGEST, JobId
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept, RulesSpec
from contracts.terms.signatures import Signed
from tests.support.history import (
    DOMAIN,
    Member,
    make_members,
    make_session,
    make_spec,
    make_wallet,
    outside_auditors,
)
from training.coordinator.journal import Opening

CLASS = "a device"


@dataclass(frozen=True)
class Papers:
    """Who signs a job of `workers`, and what they have signed before it begins."""

    spec: Signed[JobSpec]
    opening: Opening
    coordinator: Wallet
    session: Session
    members: Mapping[str, Member]
    leases: Mapping[str, Signed[LeaseAccept]]
    outside: Mapping[str, Session]

    @property
    def job(self) -> JobId:
        """The job's id."""
        return self.spec.message.job()

    def signed_opening(self) -> Signed[JobOpening]:
        """The coordinator's JobOpening, made again: signatures are deterministic."""
        listed = self.opening.auditors
        message = JobOpening(
            job=self.job,
            job_spec=self.spec.message.digest(),
            session_key=self.session.key,
            anchorer=self.opening.anchorer,
            opening_block=self.opening.opening_block,
            outside_auditors=ZERO_DIGEST if listed is None else listed.digest(),
        )
        return self.coordinator.sign(message, DOMAIN)


def make_papers(
    *workers: str,
    outside: tuple[str, ...] = (),
    device_class: str = CLASS,
    **changed: Any,
) -> Papers:
    """Papers of a job, of one stage unless `changed` says more; as in `history.make_spec`.

    `outside` may be drawn as auditors from outside, if the job is checked.
    """
    poster, coordinator = make_wallet("poster"), make_wallet("coordinator")
    rules = {name: changed.pop(name) for name in RulesSpec.model_fields if name in changed}
    usual = {"stages": 1, "rules": patient_rules(**rules)}
    usual["peers_per_stage"] = len(workers) // changed.get("stages", 1)
    changed = usual | changed
    spec = make_spec(poster, coordinator, **changed)
    members = dict(zip(workers, make_members(workers), strict=True))
    leases = {
        name: member.wallet.sign(
            LeaseAccept(
                job=spec.job(),
                account=member.wallet.account,
                session_key=member.session.key,
                offer=spec.digest(),
                price=member.price,
                stake=spec.min_stake,
                device_class=device_class,
            ),
            DOMAIN,
        )
        for name, member in members.items()
    }
    return Papers(
        poster.sign(spec, DOMAIN),
        Opening(
            make_wallet("anchorer").account,
            7,
            outside_auditors(outside, device_class=device_class) if spec.rules.audit else None,
        ),
        coordinator,
        make_session("coordinator"),
        members,
        leases,
        {name: make_session(name) for name in outside},
    )


def patient_rules(**changed: Any) -> RulesSpec:
    """Deadlines that a loaded machine keeps too: nobody is struck who is only slow."""
    values: dict[str, Any] = {
        "audit": None,
        "vesting_window": 2,
        "boundary_codec": "none",
        "gradient_codec": "none",
        "commit_timeout": 60_000,
        "exchange_timeout": 60_000,
        "redo_after": 60_000,
        "lease_grace": 60_000,
    }
    return RulesSpec(**(values | changed))
