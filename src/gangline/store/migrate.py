"""Bring a database to the version that this code speaks.

Opening one that is there already costs a single query: Alembic is imported only where something is to be migrated. A
new database is made from `schema` at once, and stamped.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, select
from sqlalchemy.exc import DatabaseError

from gangline.domain.errors import GanglineError
from gangline.store.damage import says_damaged
from gangline.store.database import Database
from gangline.store.schema import metadata

__all__ = ["HEAD", "REVISIONS", "DatabaseDamaged", "DatabaseNewer", "prepare", "upgrade"]

REVISIONS: tuple[str, ...] = ("0001", "0002")
"""Every migration, oldest first; a test holds this against the folder `migrations/versions`."""
HEAD = REVISIONS[-1]

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True, nullable=False))


class DatabaseDamaged(GanglineError):
    """What is in the database cannot be read."""

    code = "database_damaged"


class DatabaseNewer(GanglineError):
    """The database was written by a newer Gangline than this one."""

    code = "database_newer"
    exit_code = 76


def prepare(database: Database, *, thorough: bool = False) -> None:
    """Make the tables, or migrate them, or find that nothing is to do.

    Args:
        thorough: read everything first, to find damage.
    Raises:
        DatabaseDamaged: the file is no database, or its pages do not fit together.
        DatabaseNewer: this code does not know the version that the database has.
        GanglineError: the file cannot be opened now.
    """
    try:
        found = _found_version(database)
        fault = _fault(database) if thorough else ""
    except DatabaseError as error:
        if says_damaged(error.orig):
            raise _damaged(database, str(error.orig)) from error
        raise GanglineError(
            f"The database {database.engine.url.database} cannot be opened",
            why=str(error.orig),
            fix="Allow reading and writing it; or move it away: runs are then adopted from their folders.",
        ) from error
    if fault:
        raise _damaged(database, fault)
    if found == HEAD:
        return
    if found is None:
        _create(database)
    elif found in REVISIONS:
        upgrade(database)
    else:
        raise _newer(database, found)


def upgrade(database: Database, revision: str = HEAD) -> None:
    """Run the migrations up to `revision`."""
    from alembic import command  # noqa: PLC0415 - 100 ms that no normal start should pay
    from alembic.config import Config  # noqa: PLC0415 - the same

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    with database.writing() as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, revision)


def _found_version(database: Database) -> str | None:
    with database.reading() as conn:
        return _version_in(conn)


def _version_in(conn: Connection) -> str | None:
    if not inspect(conn).has_table(_version.name):
        return None
    return conn.execute(select(_version.c.version_num)).scalar_one_or_none()


def _create(database: Database) -> None:
    with database.writing() as conn:
        if _version_in(conn) is not None:  # somebody else was faster
            return
        metadata.create_all(conn)
        _version.create(conn)
        conn.execute(_version.insert().values(version_num=HEAD))


def _fault(database: Database) -> str:
    """What SQLite finds wrong with the file; "" for nothing, and for other databases."""
    if database.engine.dialect.name != "sqlite":
        return ""
    with database.reading() as conn:
        said = str(conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
    return "" if said == "ok" else said


def _damaged(database: Database, why: str) -> DatabaseDamaged:
    return DatabaseDamaged(
        f"The database {database.engine.url.database} is damaged",
        why=why,
        fix="Move the file away: runs are then adopted from their folders.",
    )


def _newer(database: Database, found: str) -> DatabaseNewer:
    return DatabaseNewer(
        f"The database {database.engine.url.database} has version {found}, this Gangline knows them up to {HEAD}",
        why="A newer Gangline has written it",
        fix="Install that version again, or set GANGLINE_HOME to another folder.",
    )
