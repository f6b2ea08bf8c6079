"""The parts of one Slurm pool, put together: bridge, mirrors, poller, backend. Nothing is asked before it is needed."""

from __future__ import annotations

import os
import time

from gangline.backends.slurm.backend import SlurmBackend
from gangline.backends.slurm.ferry import Ferry
from gangline.backends.slurm.poll import Poller
from gangline.backends.slurm.session import Session
from gangline.domain.pool import SlurmPool
from gangline.rundir.home import Home

__all__ = ["open_slurm"]


def open_slurm(home: Home, pool: SlurmPool) -> SlurmBackend:
    """The backend of a pool, its threads running; `close` ends them.

    The entry point `slurm` of `gangline.backends`.
    """
    session = Session(pool, home.path, environ=os.environ)
    ferry = Ferry(session, home, name=pool.name)
    poller = Poller(link=session, pool=pool, ferry=ferry, home=home, clock=_Clock())

    def close() -> None:
        poller.close(0.0)
        session.close()  # cuts short what the others wait for
        poller.close()
        ferry.close()
        backend.caretaker.close()

    backend = SlurmBackend(home, pool, session, poller, on_close=close)
    ferry.start()
    poller.start()
    backend.caretaker.start()
    return backend


class _Clock:
    """Real time, as `gangline.ports.Clock`."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, delay_s: float) -> None:
        time.sleep(delay_s)
