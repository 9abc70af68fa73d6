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
    op.create_index(op.f("ix_chain_events_event"), "chain_events", ["event"], unique=False)
    op.create_index(op.f("ix_chain_events_job"), "chain_events", ["job"], unique=False)
    op.create_table(
        "coordinators",
        sa.Column("address", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("allocated_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_coordinators")),
    )
    op.create_index(op.f("ix_coordinators_host"), "coordinators", ["host"], unique=False)
    op.create_table(
        "epoch_debits",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("amount", sa.Numeric(40, 0), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.Column("signed", sa.Boolean(), nullable=False),
        sa.Column("shown", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "job", name=op.f("pk_epoch_debits")),
    )
    op.create_index(op.f("ix_epoch_debits_shown"), "epoch_debits", ["shown"], unique=False)
    op.create_table(
        "epoch_leaves",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("cumulative", sa.Numeric(40, 0), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "account", "job", name=op.f("pk_epoch_leaves")),
    )
    op.create_table(
        "epochs",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("sum", sa.Numeric(40, 0), nullable=False),
        sa.Column("planned_at", sa.BigInteger(), nullable=False),
        sa.Column("transaction", sa.LargeBinary(), nullable=True),
        sa.Column("window_ends", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_epochs")),
    )
    op.create_table(
        "faucet_grants",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("gas", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.Numeric(40, 0), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("gas_transaction", sa.LargeBinary(), nullable=True),
        sa.Column("token_transaction", sa.LargeBinary(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("account", "number", name=op.f("pk_faucet_grants")),
    )
    op.create_index(op.f("ix_faucet_grants_state"), "faucet_grants", ["state"], unique=False)
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
        sa.Column("key", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("route", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("poster", sa.LargeBinary(), nullable=False),
        sa.Column("coordinator", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("budget", sa.Numeric(40, 0), nullable=False),
        sa.Column("epoch_cap", sa.Numeric(40, 0), nullable=False),
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
        sa.Column("due", sa.Numeric(40, 0), nullable=True),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("refundable_at", sa.BigInteger(), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("not_matched", sa.LargeBinary(), nullable=False),
        sa.Column("refund_shown", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_posted_at"), "jobs", ["posted_at"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "leases",
        sa.Column("lease", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("offer", sa.LargeBinary(), nullable=False),
        sa.Column("live_offer", sa.LargeBinary(), nullable=True),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.Numeric(40, 0), nullable=False),
        sa.Column("stake", sa.Numeric(40, 0), nullable=False),
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
    op.create_index(op.f("ix_leases_job"), "leases", ["job"], unique=False)
    op.create_index(op.f("ix_leases_state"), "leases", ["state"], unique=False)
    op.create_table(
        "ledger_balances",
        sa.Column("account", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("amount", sa.Numeric(40, 0), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_ledger_balances")),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("amount", sa.Numeric(40, 0), nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_ledger_entries")),
        sa.UniqueConstraint("event", "line", name=op.f("uq_ledger_entries_event_line")),
    )
    op.create_index(op.f("ix_ledger_entries_job"), "ledger_entries", ["job"], unique=False)
    op.create_index(op.f("ix_ledger_entries_source"), "ledger_entries", ["source"], unique=False)
    op.create_index(op.f("ix_ledger_entries_target"), "ledger_entries", ["target"], unique=False)
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
        sa.Column("price", sa.Numeric(40, 0), nullable=False),
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
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("account", "nonce", name=op.f("pk_pending_transactions")),
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
        "seals",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("pay", sa.LargeBinary(), nullable=False),
        sa.Column("earned", sa.Numeric(40, 0), nullable=False),
        sa.Column("vested", sa.Numeric(40, 0), nullable=False),
        sa.Column("last", sa.Boolean(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("job", "step", name=op.f("pk_seals")),
    )
    op.create_index(op.f("ix_seals_batch"), "seals", ["batch"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("block_hash", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_snapshots")),
    )
    op.create_index(op.f("ix_snapshots_block"), "snapshots", ["block"], unique=False)
    op.create_table(
        "stakes",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("active", sa.Numeric(40, 0), nullable=False),
        sa.Column("reserved", sa.Numeric(40, 0), nullable=False),
        sa.Column("unbonding", sa.Numeric(40, 0), nullable=False),
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


def downgrade() -> None:
    """Go back."""
    op.drop_table("step_reports")
    op.drop_table("stakes")
    op.drop_index(op.f("ix_snapshots_block"), table_name="snapshots")
    op.drop_table("snapshots")
    op.drop_index(op.f("ix_seals_batch"), table_name="seals")
    op.drop_table("seals")
    op.drop_table("permits")
    op.drop_index(
        op.f("ix_pending_transactions_account_intention"), table_name="pending_transactions"
    )
    op.drop_table("pending_transactions")
    op.drop_table("outbox")
    op.drop_index(op.f("ix_offers_withdrawn_expires_at"), table_name="offers")
    op.drop_table("offers")
    op.drop_table("offer_heartbeats")
    op.drop_table("messages")
    op.drop_index(op.f("ix_ledger_entries_target"), table_name="ledger_entries")
    op.drop_index(op.f("ix_ledger_entries_source"), table_name="ledger_entries")
    op.drop_index(op.f("ix_ledger_entries_job"), table_name="ledger_entries")
    op.drop_table("ledger_entries")
    op.drop_table("ledger_balances")
    op.drop_index(op.f("ix_leases_state"), table_name="leases")
    op.drop_index(op.f("ix_leases_job"), table_name="leases")
    op.drop_table("leases")
    op.drop_index(op.f("ix_jobs_state"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_posted_at"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("idempotency_keys")
    op.drop_table("hosts")
    op.drop_index(op.f("ix_hosted_jobs_host"), table_name="hosted_jobs")
    op.drop_table("hosted_jobs")
    op.drop_index(op.f("ix_faucet_grants_state"), table_name="faucet_grants")
    op.drop_table("faucet_grants")
    op.drop_table("epochs")
    op.drop_table("epoch_leaves")
    op.drop_index(op.f("ix_epoch_debits_shown"), table_name="epoch_debits")
    op.drop_table("epoch_debits")
    op.drop_index(op.f("ix_coordinators_host"), table_name="coordinators")
    op.drop_table("coordinators")
    op.drop_index(op.f("ix_chain_events_job"), table_name="chain_events")
    op.drop_index(op.f("ix_chain_events_event"), table_name="chain_events")
    op.drop_table("chain_events")
    op.drop_table("chain_cursor")
    op.drop_table("batches")
    op.drop_index(op.f("ix_batch_entries_root"), table_name="batch_entries")
    op.drop_table("batch_entries")
