"""What attempts have to say against machines. Functions inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from sqlalchemy import Connection, and_, delete, func, insert, select

from gangline.store.rows import NodeMark, clean_text
from gangline.store.schema import node_clearings, node_marks

__all__ = ["add_marks", "clear_marks", "mark_rows"]


def add_marks(conn: Connection, new: Sequence[NodeMark]) -> None:
    """Insert marks; one that is there already stays as it was first seen."""
    for mark in map(_clean, new):
        key = [node_marks.c[name] == getattr(mark, name) for name in ("pool", "host", "run_id", "attempt", "kind")]
        if conn.execute(select(node_marks.c.time).where(*key)).first() is None:
            conn.execute(insert(node_marks).values(**asdict(mark)))


def mark_rows(conn: Connection, pool: str, since: float) -> list[NodeMark]:
    """Marks after `since` that were not cleared, oldest first."""
    same = and_(node_clearings.c.pool == node_marks.c.pool, node_clearings.c.host == node_marks.c.host)
    query = select(node_marks).outerjoin(node_clearings, same)
    query = query.where(node_marks.c.pool == pool, node_marks.c.time > since)
    query = query.where(node_marks.c.time > func.coalesce(node_clearings.c.time, since))
    order = (node_marks.c.time, node_marks.c.run_id, node_marks.c.attempt, node_marks.c.host, node_marks.c.kind)
    return [NodeMark(**row) for row in conn.execute(query.order_by(*order)).mappings()]


def clear_marks(conn: Connection, pool: str, host: str, *, at: float, by: str) -> None:
    """Let marks up to `at` count no more, also those that are read later."""
    where = (node_clearings.c.pool == pool, node_clearings.c.host == host)
    conn.execute(delete(node_clearings).where(*where))
    conn.execute(insert(node_clearings).values(pool=pool, host=host, time=at, by=clean_text(by)))


def _clean(mark: NodeMark) -> NodeMark:
    return replace(mark, host=clean_text(mark.host), detail=clean_text(mark.detail))
