"""Whether a gang may be handed to Slurm now, where a pool lets runs wait in Gangline or limits its jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gangline.backends.slurm.link import Link, Ran
from gangline.backends.slurm.parse import parse_queue, parse_test_only, render_own_jobs, render_test_only
from gangline.backends.slurm.states import Standing
from gangline.backends.slurm.tokens import Token, parse_token
from gangline.backends.slurm.waits import render_clock
from gangline.domain.errors import NoCapacity
from gangline.domain.gang import GangSpec
from gangline.domain.pool import SlurmPool, WaitIn
from gangline.domain.spec import SlurmOptions

__all__ = ["Gate", "Room", "count_own", "decide_room", "parse_idle"]

_ASK_S = 60.0
_SOON_S = 60.0
"""What Slurm would start within that counts as now: it looks at its queue that often at least."""
_NO_NODES = re.compile(r"Requested node configuration is not available|Nodes? .*not available", re.IGNORECASE)
_OVER = frozenset({Standing.ENDED, Standing.ENDING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What Slurm says of a gang that it does not have yet."""

    starts_at: float | None = None
    """When it would start, by our clock; None: Slurm does not say."""
    words: str = ""
    """Why it does not."""
    idle_nodes: int = 0
    """Nodes of its partition on which nothing runs; 0 where its options ask for certain nodes."""


def decide_room(pool: str, nodes: int, room: Room, now: float) -> str | None:
    """Why a gang waits in Gangline; None: it is handed over.

    Whole idle nodes count, whatever Slurm expects: its estimate stands behind jobs that it would overtake.
    """
    if room.idle_nodes >= nodes > 0:
        return None
    if room.starts_at is not None:
        if room.starts_at - now <= _SOON_S:
            return None
        when = render_clock(room.starts_at, now=now)
        return f"Pool `{pool}` has no room now: Slurm would start the run at {when}; it waits here for its turn"
    if _NO_NODES.search(room.words):
        return f"Pool `{pool}` has no nodes for the run now ({room.words}); it waits here for them"
    return None  # what else Slurm has to say of it, it says when it is given the job


def decide_max_jobs(pool: SlurmPool, own: int) -> str | None:
    """Why the pool takes no further job."""
    if pool.max_jobs is None or own < pool.max_jobs:
        return None
    have = "1 job" if own == 1 else f"{own} jobs"
    return f"Pool `{pool.name}` has {have} of Gangline in Slurm, and takes {pool.max_jobs} at most; the run waits"


class Gate:
    """Asks Slurm before a gang is handed over; where a pool has no such wish, it asks nothing.

    Args:
        home: identity of the state folder, whose jobs are counted.
        wall: seconds since the epoch.
    """

    def __init__(self, pool: SlurmPool, link: Link, *, home: str, wall: Callable[[], float]) -> None:
        self._pool, self._link, self._home, self._wall = pool, link, home, wall

    def check(self, gang: GangSpec, options: SlurmOptions, script: str) -> None:
        """Whether the gang is handed over now. It must not have a job yet.

        Args:
            options: of the pool and the run, merged.
            script: the batch script that `sbatch` would be given.
        Raises:
            NoCapacity: it is not, and why.
            Transient, AuthFailed: Slurm could not be asked.
        """
        pool = self._pool
        if pool.max_jobs is not None:
            ran = self._link.run(render_own_jobs(self._link.hello().user), timeout_s=_ASK_S)
            why = decide_max_jobs(pool, count_own(ran, Token(home=self._home, run_id=gang.run_id, launch=gang.launch)))
            if why is not None:
                raise NoCapacity(why)
        if pool.wait_in is not WaitIn.GANGLINE:
            return
        why = decide_room(pool.name, gang.nodes, self._ask_room(options, script), self._wall())
        if why is not None:
            lane = options.partition or options.directives.get("partition") or ""
            raise NoCapacity(why, lane=lane)

    def _ask_room(self, options: SlurmOptions, script: str) -> Room:
        ran = self._link.run(render_test_only(), stdin=script.encode(), timeout_s=_ASK_S)
        starts_at = parse_test_only(ran)
        if starts_at is None:
            return Room(words=_words(ran))
        starts_at -= self._link.hello().clock_offset_s
        if starts_at - self._wall() <= _SOON_S or options.nodelist or options.constraint or options.reservation:
            return Room(starts_at=starts_at)
        return Room(starts_at=starts_at, idle_nodes=self._ask_idle(options.partition))

    def _ask_idle(self, partition: str | None) -> int:
        where = () if partition is None else (f"--partition={partition}",)
        ran = self._link.run(("sinfo", "--noheader", "--states=idle", *where, "--format=%P|%D|%t"), timeout_s=_ASK_S)
        return parse_idle(ran, is_default=partition is None)


def count_own(ran: Ran, but: Token) -> int:
    """Jobs of this server that are not over, without that of one launch.

    Raises:
        Transient: the queue gave no answer.
    """
    tokens = [
        parse_token(record.comment or "") for record in parse_queue(ran).values() if _is_live(record.state.standing)
    ]
    return sum(token is not None and token.home == but.home and token != but for token in tokens)


def _is_live(standing: Standing) -> bool:
    return standing not in _OVER


def parse_idle(ran: Ran, *, is_default: bool) -> int:
    """Most idle nodes of one partition in lines of `partition|nodes|state`; `*` marks the default one."""
    if ran.rc != 0:
        return 0
    found: dict[str, int] = {}
    for line in ran.out.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 3 and parts[1].isdigit() and parts[2] == "idle":  # noqa: PLR2004 - as asked for
            found[parts[0]] = found.get(parts[0], 0) + int(parts[1])
    return max((nodes for name, nodes in found.items() if name.endswith("*") or not is_default), default=0)


def _words(ran: Ran) -> str:
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1].rpartition("failure: ")[2].rpartition("error: ")[2][:300] if lines else ""
