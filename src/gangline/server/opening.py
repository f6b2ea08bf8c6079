"""Open the store of a state folder: a damaged database is put aside, runs that it does not know are adopted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy.exc import DatabaseError

from gangline.control.adopt import Adopted, adopt_runs
from gangline.control.records import RunRecords
from gangline.ports import Clock
from gangline.rundir.home import Home
from gangline.store.damage import says_damaged
from gangline.store.migrate import DatabaseDamaged
from gangline.store.store import Store

__all__ = ["end_when_damaged", "open_store"]

_log = logging.getLogger(__name__)
_PARTS = ("", "-wal", "-shm")
"""Files of an SQLite database, after its name."""
_MOST_NAMED = 5


def open_store(home: Home, clock: Clock) -> tuple[Store, tuple[str, ...]]:
    """The store, complete, and what people should know of how it came to be.

    Raises:
        GanglineError: a newer Gangline has written the database, or it cannot be opened at the moment.
    """
    damage = ""
    try:
        store, adopted = _open(home, clock)
    except (DatabaseDamaged, DatabaseError) as error:
        why = str(error.orig if isinstance(error, DatabaseError) else error.why)
        if isinstance(error, DatabaseError) and not says_damaged(error.orig):
            raise
        aside = _put_aside(home)
        _log.exception("%s is put aside as %s", home.database, aside)
        damage = f"The database was damaged ({why}) and is put aside as {aside}."
        store, adopted = _open(home, clock)
    home.suspect.unlink(missing_ok=True)
    store.on_changed = RunRecords(store, home).write
    return store, tuple(filter(None, (damage, _say_adopted(adopted, damage), *_some(adopted.refused))))


def end_when_damaged(store: Store, home: Home, end: Callable[[], None]) -> None:
    """Have the server ended once the database shows damage: the next one puts it aside and adopts the runs."""

    def on_damage() -> None:
        if not home.suspect.exists():
            _log.error("%s is damaged: this server ends, the next one puts it aside and adopts the runs", home.database)
            home.suspect.touch()
        end()

    store.on_damaged(on_damage)


def _open(home: Home, clock: Clock) -> tuple[Store, Adopted]:
    store = Store.open(home.database, thorough=home.suspect.exists())
    try:
        return store, adopt_runs(store, home, clock)
    except BaseException:
        store.close()
        raise


def _put_aside(home: Home) -> str:
    """Rename the files of the database; the new name of the first."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number, name = 0, f"{home.database.name}.damaged-{stamp}"
    while home.database.with_name(name).exists():
        number += 1
        name = f"{home.database.name}.damaged-{stamp}.{number}"
    for part in _PARTS:
        path = home.database.with_name(home.database.name + part)
        if path.exists():
            path.rename(home.database.with_name(name + part))
    return name


def _say_adopted(adopted: Adopted, damage: str) -> str:
    count = len(adopted.runs)
    if not count:
        return ""
    runs, why = (
        "1 run was" if count == 1 else f"{count} runs were",
        "" if damage else ", which the database did not know",
    )
    return f"{runs} adopted from {'its folder' if count == 1 else 'their folders'}{why}."


def _some(refused: tuple[str, ...]) -> tuple[str, ...]:
    if len(refused) <= _MOST_NAMED:
        return refused
    return (
        *refused[:_MOST_NAMED],
        f"{len(refused) - _MOST_NAMED} more run folders are not shown; see the server's log.",
    )
