"""The first tables.

Revision: 0001, after nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("procs_per_node", sa.Integer(), nullable=False),
        sa.Column("gpus_per_node", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("client", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("snapshot", sa.String(length=128), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("started", sa.Double(), nullable=True),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("launch", sa.Integer(), nullable=False),
        sa.Column("handle", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("placement", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("launch_restarts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("budget_from", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("attempt_nodes", sa.Integer(), nullable=True),
        sa.Column("told_attempt", sa.Integer(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("stop_asked", sa.Double(), nullable=True),
        sa.Column("stop_grace_s", sa.Double(), nullable=True),
        sa.Column("stop_by", sa.Text(), nullable=True),
        sa.Column("lease_s", sa.Double(), nullable=True),
        sa.Column("unread", sa.Boolean(), nullable=False),
        sa.Column("rerun_of", sa.String(length=64), nullable=True),
        sa.Column("debug_of", sa.String(length=64), nullable=True),
        sa.Column("branch_attempt", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("key", name=op.f("uq_runs_key")),
    )
    op.create_index(op.f("ix_runs_created"), "runs", ["created"], unique=False)
    op.create_index(op.f("ix_runs_name"), "runs", ["name"], unique=False)
    op.create_index(op.f("ix_runs_phase"), "runs", ["phase"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("launch", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("started", sa.Double(), nullable=True),
        sa.Column("running", sa.Double(), nullable=True),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("resume", sa.Text(), nullable=True),
        sa.Column("resume_step", sa.BigInteger(), nullable=True),
        sa.Column("start_mode", sa.String(length=16), nullable=True),
        sa.Column("next", sa.String(length=16), nullable=True),
        sa.Column("next_delay_s", sa.Double(), nullable=False),
        sa.Column("budget", sa.String(length=16), nullable=True),
        sa.Column("restart_message", sa.Text(), nullable=False),
        sa.Column("signature", sa.String(length=32), nullable=True),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("first_failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("ranks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_attempts")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_files", sa.Integer(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=True),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "cursors",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_cursors_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_cursors")),
    )
    op.create_table(
        "events",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "node_marks",
        sa.Column("pool", sa.String(length=200), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "host", "run_id", "attempt", "kind", name=op.f("pk_node_marks")),
    )
    op.create_index(op.f("ix_node_marks_time"), "node_marks", ["time"], unique=False)
    op.create_table(
        "node_clearings",
        sa.Column("pool", sa.String(length=200), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "host", name=op.f("pk_node_clearings")),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.Column("min_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("last_value", sa.Double(), nullable=True),
        sa.Column("last_time", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_series")),
        sa.UniqueConstraint("run_id", "rank", "name", "attempt", name=op.f("uq_series_run_id_rank_name_attempt")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_series_run_id_runs")),
    )
    op.create_table(
        "chunks",
        sa.Column("series_id", sa.Integer(), nullable=False),
        sa.Column("chunk", sa.Integer(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name=op.f("fk_chunks_series_id_series")),
        sa.PrimaryKeyConstraint("series_id", "chunk", name=op.f("pk_chunks")),
    )
    op.create_table(
        "rollups",
        sa.Column("series_id", sa.Integer(), nullable=False),
        sa.Column("chunk", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("finite", sa.Integer(), nullable=False),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("mean", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name=op.f("fk_rollups_series_id_series")),
        sa.PrimaryKeyConstraint("series_id", "chunk", name=op.f("pk_rollups")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Take back."""
    op.drop_table("rollups")
    op.drop_table("chunks")
    op.drop_table("series")
    op.drop_table("node_clearings")
    op.drop_index(op.f("ix_node_marks_time"), table_name="node_marks")
    op.drop_table("node_marks")
    op.drop_table("events")
    op.drop_table("cursors")
    op.drop_table("checkpoints")
    op.drop_table("attempts")
    op.drop_index(op.f("ix_runs_phase"), table_name="runs")
    op.drop_index(op.f("ix_runs_name"), table_name="runs")
    op.drop_index(op.f("ix_runs_created"), table_name="runs")
    op.drop_table("runs")
