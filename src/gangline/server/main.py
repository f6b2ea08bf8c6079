"""The composition root: takes the lock of a state folder, puts the parts together, serves until told to end.

It starts and ends without touching a gang: agents are processes of their own, and a new server finds them again.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from logging.handlers import RotatingFileHandler

from gangline.control.commands import Commands
from gangline.control.held import expected_launches, note_in_history
from gangline.control.reconcile import Reconciler
from gangline.control.removal import finish_removals
from gangline.domain.errors import GanglineError, StorageFull
from gangline.domain.version import VERSION, digest_code
from gangline.rundir.home import Home
from gangline.rundir.reserve import release_reserve
from gangline.rundir.serving import (
    ServerInfo,
    ensure_token,
    mark_ending,
    owner_name,
    read_server,
    still_holds,
    take_lock,
    write_server,
)
from gangline.rundir.space import probe_folder
from gangline.server.app import make_app
from gangline.server.backends import Backends
from gangline.server.clock import SystemClock
from gangline.server.listener import Listener, bind
from gangline.server.loop import ReconcileLoop, render_trouble
from gangline.server.opening import end_when_damaged, open_store
from gangline.server.parts import Parts, Stopping
from gangline.server.pools import Pools
from gangline.server.settings import Settings
from gangline.snapshot.objects import ObjectStore
from gangline.store.full import says_full

__all__ = ["main", "serve"]

_log = logging.getLogger(__name__)
_LOCK_PATIENCE_S = 0.3
"""Clients that look hold the lock for a moment. A server that is ending is waited for by the client, not by us."""
_TICK_PATIENCE_S = 3.0
_HOME_S = 1.0
_MAX_LOG_BYTES = 5_000_000


def main() -> int:
    """Serve the state folder that the environment names; 0 also where another server does already."""
    try:
        settings = Settings.from_env()
        settings.home.create()
        lock = take_lock(settings.home, patience_s=_LOCK_PATIENCE_S)
        if lock is None:
            return 0
        _log_to(settings.home)
        _end_without_home(settings.home, lock)
        if probe_folder(settings.home.path):
            release_reserve(settings.home.path)
        serve(settings)
    except Exception as error:
        known = StorageFull.of_home(settings.home.path, str(error)) if says_full(error) else error
        if not isinstance(known, GanglineError):
            raise
        print(known, file=sys.stderr)  # noqa: T201 - the log, or the terminal of who started it by hand
        return known.exit_code
    return 0  # the lock goes with the process


def _end_without_home(home: Home, lock: int) -> None:
    """End this process once its folder, or its lock, is gone or another one: nobody could find it again."""

    def watch() -> None:
        while still_holds(home, lock):
            time.sleep(_HOME_S)
        _log.error("%s, or the lock in it, is gone or another one: this server ends; gangs go on", home.path)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="home", daemon=True).start()


def serve(settings: Settings) -> None:
    """Serve until a signal or `/server/stop`; for the holder of the lock.

    Raises:
        GanglineError: the database or the port cannot be used.
    """
    home = settings.home
    stopping, code = Stopping(on_begin=partial(_withdraw, home)), digest_code()
    with ExitStack() as stack:
        token = ensure_token(home)
        socket_ = stack.enter_context(_listening(settings))
        clock, backends = SystemClock(), stack.enter_context(closing(Backends(home)))
        store, warnings = open_store(home, clock)
        stack.callback(store.close)
        backends.watch(store.pools_in_use)
        end_when_damaged(store, home, stopping.begin)
        loop = ReconcileLoop(home=home.path, busy_s=settings.busy_tick_s, idle_s=settings.idle_tick_s)
        commands = Commands(
            store=store,
            backends=backends,
            home=home,
            clock=clock,
            poke=loop.poke,
            health=settings.health,
            fault_of=backends.fault_of,
        )
        parts = Parts(
            commands=commands,
            pools=Pools(
                home=home,
                backends=backends,
                list_pools=commands.pools,
                poke=loop.poke,
                held=partial(expected_launches, store, backends),
                note=partial(note_in_history, store, clock),
            ),
            objects=ObjectStore(home.path),
            home=home,
            started=(started := clock.now()),
            stopping=stopping,
            owner=owner_name(),
            warnings=warnings,
            trouble=lambda: render_trouble(loop.trouble(), home.path, since=loop.troubled_since()),
        )
        info = ServerInfo(pid=os.getpid(), port=socket_.getsockname()[1], version=VERSION, started=started, code=code)
        listener = Listener(make_app(parts, token=token), stopping=stopping, on_listening=lambda: _announce(home, info))
        loop.start(
            Reconciler(
                store=store,
                backends=backends,
                home=home,
                clock=clock,
                leader_patience_s=settings.leader_patience_s,
                health=settings.health,
            )
        )
        threading.Thread(target=finish_removals, args=(home,), name="removals", daemon=True).start()
        stack.callback(_close_loop, loop)
        listener.run([socket_])
    _log.info("server ended; gangs go on")


def _withdraw(home: Home) -> None:
    """Nobody is to call this server any more; who finds it holding the lock learns that it ends."""
    mark_ending(home)
    home.server.unlink(missing_ok=True)


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """A bound socket; the address of the server before goes first, as its port may be another program's by now."""
    before = read_server(settings.home)
    settings.home.server.unlink(missing_ok=True)
    with bind(settings.port, before=before.port if before else None) as found:
        yield found


def _announce(home: Home, info: ServerInfo) -> None:
    write_server(home, info)
    _log.info("server %s listens on port %d, pid %d, state in %s", info.version, info.port, info.pid, home.path)


def _close_loop(loop: ReconcileLoop) -> None:
    if not loop.close(patience_s=_TICK_PATIENCE_S):
        _log.warning("the last look at the gangs has not ended in %.0f s and is left behind", _TICK_PATIENCE_S)


def _log_to(home: Home) -> None:
    handler = RotatingFileHandler(home.server_log, maxBytes=_MAX_LOG_BYTES, backupCount=1, encoding="utf-8")
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("alembic", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
