"""The tables.

One migration per change; `migrate.HEAD` names the newest, and a test proves that both ways to here agree.

Plain SQL types that SQLite and PostgreSQL share. Times are seconds since the epoch.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

__all__ = [
    "attempts",
    "checkpoints",
    "chunks",
    "cursors",
    "events",
    "metadata",
    "node_clearings",
    "node_marks",
    "rollups",
    "runs",
    "series",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _json(name: str) -> Column[object]:
    return Column(name, JSON(none_as_null=True))


def _run_id() -> Column[str]:
    return Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True)


runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("key", String(200), nullable=False, unique=True),  # what makes a repeated submit the same run
    Column("name", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("procs_per_node", Integer, nullable=False),
    Column("gpus_per_node", Integer, nullable=False),
    _json("labels"),
    _json("spec"),
    _json("client"),
    Column("snapshot", String(128)),
    Column("phase", String(16), nullable=False),
    Column("reason", String(32)),
    Column("message", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created", Double, nullable=False),
    Column("started", Double),
    Column("ended", Double),
    Column("exit_code", Integer),
    Column("launch", Integer, nullable=False),  # number of the launch that lives, or that comes next
    _json("handle"),  # what the backend knows the launch by; null: no machines are held
    _json("placement"),  # per node: the devices that the launch may use
    _json("launch_restarts"),  # restarts that the server itself decided, by budget
    Column("budget_from", Integer, nullable=False),  # attempts before this one are not counted against the budgets
    Column("attempt", Integer),  # newest attempt that was seen
    Column("attempt_nodes", Integer),  # how many nodes it has
    Column("told_attempt", Integer),  # newest attempt that the phase speaks of
    Column("step", BigInteger),
    Column("total_steps", BigInteger),
    Column("not_before", Double),
    Column("stop_asked", Double),
    Column("stop_grace_s", Double),
    Column("stop_by", Text),
    Column("stop_cause", String(16)),  # as in control.jsonl: `stop`, `lease`
    Column("lease_s", Double),  # how long the run goes on when nobody renews; null: it needs nobody
    Column("unread", Boolean, nullable=False),  # adopted from its folder, which was not read to its end yet
    Column("rerun_of", String(64)),
    Column("debug_of", String(64)),
    Column("branch_attempt", Integer, nullable=False),  # first attempt that began at the spec's start_from
    Column("revision", Integer, nullable=False),  # how often `gangline resume` has changed the spec
    Index(None, "phase"),
    Index(None, "created"),
    Index(None, "name"),
)

events = Table(
    "events",
    metadata,
    _run_id(),
    Column("seq", Integer, primary_key=True),
    Column("time", Double, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("message", Text, nullable=False),
    _json("data"),
)

attempts = Table(
    "attempts",
    metadata,
    _run_id(),
    Column("number", Integer, primary_key=True),
    Column("launch", Integer, nullable=False),
    Column("outcome", String(16)),
    Column("reason", String(32)),
    Column("message", Text, nullable=False),
    Column("exit_code", Integer),
    Column("started", Double),
    Column("running", Double),
    Column("ended", Double),
    Column("resume", Text),
    Column("resume_step", BigInteger),
    Column("start_mode", String(16)),
    Column("next", String(16)),
    Column("next_delay_s", Double, nullable=False),
    Column("budget", String(16)),
    Column("restart_message", Text, nullable=False),
    Column("signature", String(32)),
    Column("hint", Text, nullable=False),
    _json("first_failure"),
    _json("ranks"),
    _json("nodes"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _run_id(),
    Column("path", Text, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("num_files", Integer, nullable=False),
    Column("time", Double, nullable=False),
    Column("duration_s", Double),
    Column("kept", Boolean, nullable=False),
)

cursors = Table(
    "cursors",
    metadata,
    _run_id(),
    Column("path", Text, primary_key=True),  # relative to the run directory
    Column("offset", BigInteger, nullable=False),
)

node_marks = Table(
    "node_marks",
    metadata,
    Column("pool", String(200), primary_key=True),
    Column("host", String(255), primary_key=True),
    Column("run_id", String(64), primary_key=True),  # which may have been removed: the machine is the same
    Column("attempt", Integer, primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("time", Double, nullable=False),
    Column("detail", Text, nullable=False),
    Index(None, "time"),
)

node_clearings = Table(
    "node_clearings",
    metadata,
    Column("pool", String(200), primary_key=True),
    Column("host", String(255), primary_key=True),
    Column("time", Double, nullable=False),  # marks up to then count no more, whenever they are read
    Column("by", Text, nullable=False),
)

series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(64), ForeignKey("runs.id"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("points", BigInteger, nullable=False),
    Column("min_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("last_value", Double),  # null: not finite
    Column("last_time", Double, nullable=False),
    UniqueConstraint("run_id", "rank", "name", "attempt"),
)

rollups = Table(
    "rollups",
    metadata,
    Column("series_id", Integer, ForeignKey("series.id"), primary_key=True),
    Column("chunk", Integer, primary_key=True),
    Column("first_step", BigInteger, nullable=False),  # the smallest
    Column("last_step", BigInteger, nullable=False),  # the largest
    Column("count", Integer, nullable=False),
    Column("finite", Integer, nullable=False),
    Column("min", Double),
    Column("max", Double),
    Column("mean", Double),
    sqlite_with_rowid=False,  # rows of one series lie together, so that a chart reads few pages
)

chunks = Table(
    "chunks",
    metadata,
    Column("series_id", Integer, ForeignKey("series.id"), primary_key=True),
    Column("chunk", Integer, primary_key=True),
    Column("points", LargeBinary, nullable=False),  # see metrics.pack_points
)
