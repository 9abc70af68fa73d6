"""The first tables: what `market.service.rows` says, and the row that the ledger is held by."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "audit_bonds",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("price", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("stake", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("accept", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("job", "account", name=op.f("pk_audit_bonds")),
    )
    op.create_index(op.f("ix_audit_bonds_account"), "audit_bonds", ["account"], unique=False)
    op.create_index(op.f("ix_audit_bonds_state"), "audit_bonds", ["state"], unique=False)
    op.create_table(
        "auditor_lists",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_auditor_lists")),
    )
    op.create_table(
        "auditors",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("signed_at", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_auditors")),
        sa.UniqueConstraint("session_key", name=op.f("uq_auditors_session_key")),
    )
    op.create_table(
        "batch_entries",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "step", name=op.f("pk_batch_entries")),
    )
    op.create_index(op.f("ix_batch_entries_root"), "batch_entries", ["root"], unique=False)
    op.create_table(
        "batches",
        sa.Column("root", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("transaction", sa.LargeBinary(), nullable=True),
        sa.Column("block", sa.BigInteger(), nullable=True),
        sa.Column("coin", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("root", name=op.f("pk_batches")),
        sa.UniqueConstraint("number", name=op.f("uq_batches_number")),
    )
    op.create_table(
        "beats",
        sa.Column("queue", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue", name=op.f("pk_beats")),
    )
    op.create_table(
        "blob_owners",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("blob", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "blob", name=op.f("pk_blob_owners")),
    )
    op.create_index(op.f("ix_blob_owners_blob"), "blob_owners", ["blob"], unique=False)
    op.create_table(
        "blob_uploads",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_blob_uploads")),
    )
    op.create_table(
        "blob_uses",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_blob_uses")),
    )
    op.create_table(
        "chain_cursor",
        sa.Column("block", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("block", name=op.f("pk_chain_cursor")),
    )
    op.create_table(
        "chain_events",
        sa.Column("block", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("log_index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("block_hash", sa.LargeBinary(), nullable=False),
        sa.Column("transaction", sa.LargeBinary(), nullable=False),
        sa.Column("contract", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=True),
        sa.Column("args", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("block", "log_index", name=op.f("pk_chain_events")),
    )
    op.create_index(
        op.f("ix_chain_events_block_hash"), "chain_events", ["block_hash"], unique=False
    )
    op.create_index(op.f("ix_chain_events_event"), "chain_events", ["event"], unique=False)
    op.create_index(op.f("ix_chain_events_job"), "chain_events", ["job"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("peer", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("is_here", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "peer", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "clearing_rounds",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("spares", sa.BigInteger(), nullable=False),
        sa.Column("reserve", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("asks", sa.BigInteger(), nullable=False),
        sa.Column("is_bought", sa.Boolean(), nullable=False),
        sa.Column("price", sa.Numeric(precision=40, scale=0), nullable=True),
        sa.Column("winners", sa.LargeBinary(), nullable=False),
        sa.Column("excluded", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_clearing_rounds")),
    )
    op.create_index(
        op.f("ix_clearing_rounds_is_bought"), "clearing_rounds", ["is_bought"], unique=False
    )
    op.create_index(op.f("ix_clearing_rounds_job"), "clearing_rounds", ["job"], unique=False)
    op.create_table(
        "convictions",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("wanted", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("owed", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("auditors", sa.LargeBinary(), nullable=False),
        sa.Column("accounts", sa.LargeBinary(), nullable=False),
        sa.Column("reports", sa.LargeBinary(), nullable=False),
        sa.Column("evidence", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("job", "subject", name=op.f("pk_convictions")),
        sa.UniqueConstraint("evidence", name=op.f("uq_convictions_evidence")),
    )
    op.create_table(
        "coordinators",
        sa.Column("address", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("allocated_at", sa.BigInteger(), nullable=True),
        sa.Column("allocated_to", sa.LargeBinary(), nullable=True),
        sa.Column("job", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_coordinators")),
    )
    op.create_index(op.f("ix_coordinators_host"), "coordinators", ["host"], unique=False)
    op.create_index(op.f("ix_coordinators_job"), "coordinators", ["job"], unique=False)
    op.create_table(
        "counted_outcomes",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_counted_outcomes")),
    )
    op.create_table(
        "epoch_debits",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("amount", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.Column("signed", sa.Boolean(), nullable=False),
        sa.Column("shown", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "job", name=op.f("pk_epoch_debits")),
    )
    op.create_index(op.f("ix_epoch_debits_job"), "epoch_debits", ["job"], unique=False)
    op.create_index(op.f("ix_epoch_debits_shown"), "epoch_debits", ["shown"], unique=False)
    op.create_table(
        "epoch_leaves",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("cumulative", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "account", "job", name=op.f("pk_epoch_leaves")),
    )
    op.create_table(
        "epochs",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("sum", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("planned_at", sa.BigInteger(), nullable=False),
        sa.Column("transaction", sa.LargeBinary(), nullable=True),
        sa.Column("window_ends", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_epochs")),
    )
    op.create_table(
        "events",
        sa.Column("feed", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("feed", "sequence", name=op.f("pk_events")),
    )
    op.create_table(
        "evidence",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("auditor", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("bundle", sa.LargeBinary(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "subject", "auditor", name=op.f("pk_evidence")),
        sa.UniqueConstraint("bundle", name=op.f("uq_evidence_bundle")),
    )
    op.create_table(
        "faucet_grants",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("gas", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("gas_transaction", sa.LargeBinary(), nullable=True),
        sa.Column("token_transaction", sa.LargeBinary(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("account", "number", name=op.f("pk_faucet_grants")),
    )
    op.create_index(op.f("ix_faucet_grants_state"), "faucet_grants", ["state"], unique=False)
    op.create_table(
        "feeds",
        sa.Column("feed", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("feed", name=op.f("pk_feeds")),
    )
    op.create_table(
        "hosted_jobs",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_hosted_jobs")),
    )
    op.create_index(op.f("ix_hosted_jobs_host"), "hosted_jobs", ["host"], unique=False)
    op.create_table(
        "hosts",
        sa.Column("host", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("heard_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_hosts")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("route", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("route", "owner", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("poster", sa.LargeBinary(), nullable=False),
        sa.Column("coordinator", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("budget", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("epoch_cap", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("posted_at", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("opening", sa.LargeBinary(), nullable=True),
        sa.Column("opening_block", sa.BigInteger(), nullable=True),
        sa.Column("num_messages", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("last_seal", sa.LargeBinary(), nullable=True),
        sa.Column("due", sa.Numeric(precision=40, scale=0), nullable=True),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("refundable_at", sa.BigInteger(), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("not_matched", sa.LargeBinary(), nullable=False),
        sa.Column("refund_shown", sa.Boolean(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("wish", sa.BigInteger(), nullable=False),
        sa.Column("heeded", sa.BigInteger(), nullable=False),
        sa.Column("wished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_posted_at"), "jobs", ["posted_at"], unique=False)
    op.create_index(op.f("ix_jobs_poster"), "jobs", ["poster"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "leases",
        sa.Column("lease", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("offer", sa.LargeBinary(), nullable=False),
        sa.Column("live_offer", sa.LargeBinary(), nullable=True),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("stake", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("accept_ends", sa.BigInteger(), nullable=False),
        sa.Column("accept", sa.LargeBinary(), nullable=True),
        sa.Column("accept_digest", sa.LargeBinary(), nullable=True),
        sa.Column("session_key", sa.LargeBinary(), nullable=True),
        sa.Column("stake_state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lease", name=op.f("pk_leases")),
        sa.UniqueConstraint("live_offer", name=op.f("uq_leases_live_offer")),
        sa.UniqueConstraint("session_key", name=op.f("uq_leases_session_key")),
    )
    op.create_index(op.f("ix_leases_account"), "leases", ["account"], unique=False)
    op.create_index(op.f("ix_leases_job"), "leases", ["job"], unique=False)
    op.create_index(op.f("ix_leases_state"), "leases", ["state"], unique=False)
    op.create_table(
        "ledger_balances",
        sa.Column("account", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("amount", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_ledger_balances")),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("amount", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_ledger_entries")),
        sa.UniqueConstraint("event", "line", name=op.f("uq_ledger_entries_event_line")),
    )
    op.create_index(op.f("ix_ledger_entries_job"), "ledger_entries", ["job"], unique=False)
    op.create_index(op.f("ix_ledger_entries_source"), "ledger_entries", ["source"], unique=False)
    op.create_index(op.f("ix_ledger_entries_target"), "ledger_entries", ["target"], unique=False)
    op.create_table(
        "listed_auditors",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("stake", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.PrimaryKeyConstraint("job", "account", name=op.f("pk_listed_auditors")),
    )
    op.create_index(
        op.f("ix_listed_auditors_account"), "listed_auditors", ["account"], unique=False
    )
    op.create_index(
        op.f("ix_listed_auditors_session_key"), "listed_auditors", ["session_key"], unique=False
    )
    op.create_table(
        "messages",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.LargeBinary(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "sequence", name=op.f("pk_messages")),
        sa.UniqueConstraint("job", "digest", name=op.f("uq_messages_job_digest")),
        sa.UniqueConstraint("job", "name", name=op.f("uq_messages_job_name")),
    )
    op.create_table(
        "offer_heartbeats",
        sa.Column("subject", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("heard_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_offer_heartbeats")),
    )
    op.create_table(
        "offers",
        sa.Column("offer", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("price", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("flops_per_second", sa.BigInteger(), nullable=False),
        sa.Column("available_from", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("posted_at", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), nullable=False),
        sa.Column("lease", sa.LargeBinary(), nullable=True),
        sa.Column("blocked_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("offer", name=op.f("pk_offers")),
    )
    op.create_index(
        op.f("ix_offers_withdrawn_expires_at"), "offers", ["withdrawn", "expires_at"], unique=False
    )
    op.create_table(
        "operations",
        sa.Column("operation", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("wish", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("operation", name=op.f("pk_operations")),
    )
    op.create_index(op.f("ix_operations_job"), "operations", ["job"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("subject", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_outbox")),
    )
    op.create_table(
        "pending_transactions",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("nonce", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("intention", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(
            "account", "nonce", "attempt", name=op.f("pk_pending_transactions")
        ),
    )
    op.create_index(
        op.f("ix_pending_transactions_account_intention"),
        "pending_transactions",
        ["account", "intention"],
        unique=False,
    )
    op.create_table(
        "permits",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_permits")),
    )
    op.create_table(
        "reputations",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("matches", sa.BigInteger(), nullable=False),
        sa.Column("mismatches", sa.BigInteger(), nullable=False),
        sa.Column("kept", sa.BigInteger(), nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.Column("liveness", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_reputations")),
    )
    op.create_table(
        "seals",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("pay", sa.LargeBinary(), nullable=False),
        sa.Column("earned", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("vested", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("last", sa.Boolean(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("job", "step", name=op.f("pk_seals")),
    )
    op.create_index(op.f("ix_seals_batch"), "seals", ["batch"], unique=False)
    op.create_table(
        "slashes",
        sa.Column("evidence", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("wanted", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("owed", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("challenger", sa.LargeBinary(), nullable=False),
        sa.Column("convicted_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("amount", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("restitution", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("bounty", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("burned", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("case", sa.BigInteger(), nullable=True),
        sa.Column("superseded", sa.BigInteger(), nullable=True),
        sa.Column("contest", sa.LargeBinary(), nullable=True),
        sa.Column("announced_by", sa.LargeBinary(), nullable=True),
        sa.Column("ended_by", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("evidence", name=op.f("pk_slashes")),
        sa.UniqueConstraint("case", name=op.f("uq_slashes_case")),
    )
    op.create_index(op.f("ix_slashes_account"), "slashes", ["account"], unique=False)
    op.create_index(op.f("ix_slashes_job"), "slashes", ["job"], unique=False)
    op.create_index(op.f("ix_slashes_state"), "slashes", ["state"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("block_hash", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_snapshots")),
    )
    op.create_index(op.f("ix_snapshots_block"), "snapshots", ["block"], unique=False)
    op.create_table(
        "stakes",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("active", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("reserved", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("unbonding", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_stakes")),
    )
    op.create_table(
        "step_reports",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("loss_millionths", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_second", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("validation_millionths", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job", "step", name=op.f("pk_step_reports")),
    )
    op.execute("INSERT INTO ledger_balances (account, amount) VALUES ('outside', 0)")
