"""Databases of every age open, or say why not."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from gangline.domain.errors import GanglineError
from gangline.store import migrate
from gangline.store.database import Database
from gangline.store.migrate import HEAD, REVISIONS, DatabaseNewer, upgrade
from gangline.store.store import Store


def schema_of(database):
    query = "select name, sql from sqlite_master where name not like 'sqlite_%' order by name"
    with database.reading() as conn:
        return {name: " ".join(sql.split()) for name, sql in conn.execute(text(query)) if sql}


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
