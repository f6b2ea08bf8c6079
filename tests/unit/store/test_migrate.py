"""Databases of every age open, or say why not."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from gangline.domain.errors import GanglineError
from gangline.store import migrate
from gangline.store.database import Database
from gangline.store.migrate import HEAD, REVISIONS, DatabaseNewer, upgrade
from gangline.store.store import Store


def schema_of(database):
    """By table: columns, keys and indexes. What a migration adds stands at the end of a table, which means nothing."""
    with database.reading() as conn:
        found = inspect(conn)
        return {
            table: (
                sorted((one["name"], str(one["type"]), one["nullable"]) for one in found.get_columns(table)),
                found.get_pk_constraint(table)["constrained_columns"],
                sorted(str(one) for one in found.get_unique_constraints(table)),
                sorted(str(one) for one in found.get_foreign_keys(table)),
                sorted(str(one) for one in found.get_indexes(table)),
                "WITHOUT ROWID" in (text_of(conn, table) or "").upper(),
            )
            for table in found.get_table_names()
        }


def text_of(conn, table):
    return conn.execute(text("select sql from sqlite_master where name = :name"), {"name": table}).scalar_one()


def test_migrations_from_nothing_make_what_a_new_database_has(tmp_path):
    migrated, created = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    upgrade(migrated)
    migrate.prepare(created)
    expected = schema_of(created)
    found = schema_of(migrated)
    expected.pop("alembic_version"), found.pop("alembic_version")
    assert found == expected
    for database in (migrated, created):
        database.close()


def test_why_runs_are_to_stop_is_taken_from_the_words_that_older_databases_hold(tmp_path, new_run):
    new = Store.open(tmp_path / "new.db")
    new.add_run(new_run())
    new.close()
    source, old = Database(tmp_path / "new.db"), Database(tmp_path / "a.db")
    upgrade(old, "0001")
    with source.reading() as conn:
        row = dict(conn.execute(text("select * from runs")).one()._mapping)
    row.pop("stop_cause")
    by = {"a": (None, None), "b": (5.0, "alice"), "c": (5.0, "the end of its lease")}
    with old.writing() as conn:
        for key, (asked, who) in by.items():
            values = {**row, "id": key, "key": key, "stop_asked": asked, "stop_by": who}
            names = ", ".join(f'"{name}"' for name in values)
            conn.execute(
                text(f"insert into runs ({names}) values ({', '.join(':' + name for name in values)})"), values
            )
    source.close(), old.close()
    store = Store.open(tmp_path / "a.db")
    found = {key: (store.run(key).stop_cause, store.run(key).stop_by) for key in by}
    assert found == {"a": (None, None), "b": ("stop", "alice"), "c": ("lease", None)}
    store.close()


def test_every_migration_is_listed():
    folder = Path(migrate.__file__).with_name("migrations") / "versions"
    assert tuple(sorted(path.name[:4] for path in folder.glob("[0-9]*.py"))) == REVISIONS


def test_a_migrated_database_opens_as_it_is(tmp_path, new_run):
    database = Database(tmp_path / "a.db")
    upgrade(database)
    database.close()
    store = Store.open(tmp_path / "a.db")
    assert store.add_run(new_run()).id == "r-1"
    store.close()


def test_a_database_of_a_newer_version_is_left_alone(tmp_path):
    Store.open(tmp_path / "a.db").close()
    database = Database(tmp_path / "a.db")
    with database.writing() as conn:
        conn.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(DatabaseNewer, match="9999"):
        Store.open(tmp_path / "a.db")
    database.close()


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "a.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(GanglineError, match=r"a\.db"):
        Store.open(tmp_path / "a.db")


def test_opening_what_is_there_imports_no_alembic(tmp_path):
    Store.open(tmp_path / "a.db").close()
    code = f"""
import sys
from pathlib import Path
from gangline.store.store import Store
Store.open(Path({str(tmp_path / "a.db")!r})).close()
assert HEAD
assert "alembic" not in sys.modules, "alembic"
assert "sqlalchemy.orm" not in sys.modules, "orm"
""".replace("assert HEAD\n", f"# at {HEAD}\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
