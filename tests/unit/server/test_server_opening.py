"""A database that is damaged, gone or not to be read when a server begins."""

import sqlite3

import pytest

from gangline.domain.errors import GanglineError
from gangline.rundir.home import Home
from gangline.server.opening import end_when_damaged, open_store
from gangline.store.store import Store
from gangline.testing import FakeClock


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "state").create()


def spoil_the_head(path):
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)


def spoil_page_of(path, table):
    """The first page of a table or index, so that opening goes well."""
    with sqlite3.connect(path) as database:
        [[page]] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table])
        [[size]] = database.execute("PRAGMA page_size")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


def make(home):
    store, warnings = open_store(home, FakeClock())
    assert warnings == ()
    store.close()


def test_a_file_that_is_no_database_is_put_aside_whole(home):
    make(home)
    spoil_the_head(home.database)
    spoiled = home.database.read_bytes()
    store, warnings = open_store(home, FakeClock())
    assert store.list_runs() == []
    store.close()
    [aside] = home.path.glob("gangline.db.damaged-*Z")
    assert aside.read_bytes() == spoiled
    assert aside.name in warnings[0]
    spoil_the_head(home.database)
    open_store(home, FakeClock())[0].close()
    assert len(list(home.path.glob("gangline.db.damaged-*"))) == 2, "a second one in the same second has another name"


def test_damage_that_shows_later_ends_the_server_and_the_next_one_puts_it_aside(home):
    make(home)
    spoil_page_of(home.database, "sqlite_autoindex_events_1")
    ended = []
    store, warnings = open_store(home, FakeClock())
    assert warnings == ()
    end_when_damaged(store, home, lambda: ended.append(True))
    with pytest.raises(Exception, match="malformed"):
        store.events("any")
    store.close()
    assert ended
    store, warnings = open_store(home, FakeClock())
    assert "is put aside as gangline.db.damaged-" in warnings[0]
    assert store.list_runs() == []
    store.close()
    store, warnings = open_store(home, FakeClock())
    assert warnings == ()
    store.close()


def test_damage_among_the_runs_shows_at_once(home):
    make(home)
    for name in ("runs", "sqlite_autoindex_runs_1", "sqlite_autoindex_runs_2"):
        spoil_page_of(home.database, name)
    store, warnings = open_store(home, FakeClock())
    assert "is put aside" in warnings[0]
    assert store.list_runs() == []
    store.close()


def test_a_false_alarm_costs_nothing(home):
    make(home)
    home.suspect.touch()
    store, warnings = open_store(home, FakeClock())
    store.close()
    assert (warnings, list(home.path.glob("*damaged*"))) == ((), [])
    assert not home.suspect.exists()


def test_a_database_that_cannot_be_opened_now_stays_where_it_is(home):
    home.database.mkdir()
    with pytest.raises(GanglineError, match="cannot be opened"):
        open_store(home, FakeClock())
    assert home.database.is_dir()


def test_a_database_that_is_busy_is_not_damaged(home, monkeypatch):
    make(home)
    called = []
    store = Store.open(home.database)
    store.on_damaged(lambda: called.append(True))
    monkeypatch.setattr("gangline.store.database.BUSY_TIMEOUT_S", 0.0)
    with sqlite3.connect(home.database, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("ROLLBACK")
    assert store.list_runs() == []
    store.close()
    assert called == []
