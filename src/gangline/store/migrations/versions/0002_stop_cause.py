"""Runs say in a column of its own why they are to stop.

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LEASE_WORDS = "the end of its lease"
"""What `stop_by` held for a run that nobody renewed."""


def upgrade() -> None:
    """Apply."""
    op.add_column("runs", sa.Column("stop_cause", sa.String(length=16), nullable=True))
    runs = sa.table("runs", *(sa.column(name) for name in ("stop_by", "stop_asked", "stop_cause")))
    op.execute(runs.update().where(runs.c.stop_asked.is_not(None)).values(stop_cause="stop"))
    op.execute(runs.update().where(runs.c.stop_by == _LEASE_WORDS).values(stop_cause="lease", stop_by=None))


def downgrade() -> None:
    """Take back."""
    runs = sa.table("runs", sa.column("stop_by"), sa.column("stop_cause"))
    op.execute(runs.update().where(runs.c.stop_cause == "lease").values(stop_by=_LEASE_WORDS))
    op.drop_column("runs", "stop_cause")
