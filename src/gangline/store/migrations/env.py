"""What Alembic runs.

The connection comes from `gangline.store.migrate`, inside whose transaction everything happens.
"""

from __future__ import annotations

from alembic import context

from gangline.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
