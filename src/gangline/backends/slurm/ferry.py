"""Keeps the server's run directories the mirrors of those that lie on a cluster.

Pulls what grew there by offset, over the pool's one link; pushes what the server appends to `control.jsonl`. Nothing of
its state has to survive: whoever starts again looks at the sizes of files.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.backends.slurm.followed import Finishing, Followed
from gangline.backends.slurm.link import Changes, Link
from gangline.domain.errors import BackendError, GanglineError
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.rundir.mirror import FileState, Gap
from gangline.rundir.pull import Read, Wanted, pull

__all__ = ["Ferry", "Pace"]

_log = logging.getLogger(__name__)
_PUSH_BYTES = 1 << 18
_PIECE_BYTES = 1 << 18
_LEAST_BATCH_BYTES, _MOST_BATCH_BYTES = 1 << 16, 4 << 20
_BATCH_S = 0.5
"""How long one batch of reads should take; signs of life and other runs wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often things are looked at."""

    pull_s: float = 0.5
    most_load: float = 0.2
    """Most of the time that looking for changes may take there."""
    round_s: float = 1.0
    """How long files are copied before it is looked for changes again."""
    push_s: float = 0.15
    retry_s: float = 2.0
    result_patience_s: float = 30.0
    """How long a result that is not visible is waited for, of a launch that is over."""


class Ferry:
    """The mirrors of one pool.

    Args:
        link: to the far side.
        home: whose run directories are the mirrors.
        name: of the pool, for messages.
    """

    def __init__(self, link: Link, home: Home, *, name: str, pace: Pace | None = None) -> None:
        self._link, self._home, self._name = link, home, name
        self._pace = pace or Pace()
        self._lock = threading.Lock()
        self._followed: dict[str, Followed] = {}
        self._since: object = None
        self._batch_bytes = _LEAST_BATCH_BYTES * 4
        self._served: dict[tuple[str, str], None] = {}
        """Files that had their turn in this round, in that order."""
        self._said_blocked = ""
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin; until then nothing is asked."""
        for work in (self._pull, self._push):
            thread = threading.Thread(target=work, name=f"ferry-{self._name}-{work.__name__.strip('_')}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self, patience_s: float = 10.0) -> None:
        """End; to be called before the link is closed, or just after, which cuts short what is on its way."""
        self._ending.set()
        self._wake.set()
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def follow(self, run_id: str) -> None:
        """Keep the mirror of a run; does nothing if that is done already."""
        with self._lock:
            if run_id not in self._followed:
                self._followed[run_id] = Followed()
                self._wake.set()

    def forget(self, run_id: str) -> None:
        """Keep it no more."""
        with self._lock:
            self._followed.pop(run_id, None)

    def finish(self, run_id: str, launch: int = 0) -> bool:
        """Whether the mirror holds all that a launch has left which is known to be over.

        True once a complete look that began after the first such call has ended without problems, and the result of an
        attempt that has begun is there or did not become visible in time. Asks for that look; returns at once.
        """
        self.follow(run_id)
        with self._lock:
            run = self._followed.get(run_id)
            if run is None:
                return False
            is_new = run.finishing is None or run.finishing.launch != launch
            finishing = run.finish(launch)
            if is_new:
                self._wake.set()
            return finishing.is_done

    def problem(self, run_id: str) -> str:
        """What keeps the mirror of a run from being complete, for people; "" where nothing does."""
        with self._lock:
            run = self._followed.get(run_id)
            return run.said if run else ""

    def mirrored(self, run_id: str) -> float | None:
        """When, by the clock here, the mirror last held all that had been written; None: not since this began."""
        with self._lock:
            run = self._followed.get(run_id)
            return run.mirrored if run else None

    def _pull(self) -> None:
        while not self._ending.is_set():
            pause_s = self._guarded(self._round)
            self._wake.wait(pause_s)
            self._wake.clear()

    def _push(self) -> None:
        while not self._ending.wait(self._guarded(self._push_all)):
            pass

    def _guarded(self, work: Callable[[], float]) -> float:
        """Do one round of something; the pause until the next. Whatever happens, there is a next."""
        try:
            return work()
        except BackendError:  # the pool shows it, and says it when it changes
            return self._pace.retry_s
        except Exception:  # noqa: BLE001 - the thread is all that keeps the mirrors, and it is recorded
            _log.exception("pool %s: its mirrors could not be kept; it goes on in a moment", self._name)
            return self._pace.retry_s * 2

    # Pulling.

    def _round(self) -> float:
        with self._lock:
            runs = dict(self._followed)
            asked = {name: run.finishing for name, run in runs.items() if run.finishing and not run.finishing.is_done}
        if not runs:
            return self._pace.pull_s * 4
        began, began_at = time.monotonic(), time.time()
        gone, took_s = self._look(runs)
        is_complete = self._copy(runs)
        now = time.monotonic()
        for run in runs.values():
            if run.is_complete:
                run.mirrored = began_at
        for name, finishing in asked.items():
            self._conclude(name, runs[name], finishing, is_gone=name in gone, now=now)
        self._say(runs)
        pause_s = max(self._pace.pull_s - (now - began), took_s / self._pace.most_load - took_s, 0.02)
        if any(run.blocked for run in runs.values()):
            pause_s = max(pause_s, self._pace.retry_s)
        elif not is_complete:
            pause_s = 0.0
        return pause_s

    def _look(self, runs: Mapping[str, Followed]) -> tuple[frozenset[str], float]:
        """Ask what has changed; runs that are not there, and how long the far side took."""
        gone: set[str] = set()
        took_s, now = 0.0, time.monotonic()
        whole = [name for name, run in runs.items() if run.wants_all(now)]
        for names, is_whole in ((whole, True), ([name for name in runs if name not in {*whole}], False)):
            if not names:
                continue
            changes = self._link.changes(names, None if is_whole else self._since)
            for name in names:
                states = [FileState(*found) for found in changes.files.get(name, ())]
                runs[name].tell(states, all_at=now if is_whole else None)
            self._show_signs(runs, changes)
            gone |= changes.gone
            took_s += changes.took_s
            self._since = changes.since
        for name in gone:  # it may come, and is then asked about as a whole
            runs[name].told_at = None
        return frozenset(gone), took_s

    def _copy(self, runs: Mapping[str, Followed]) -> bool:
        """Copy what is pending, for a while; whether all of it had its turn."""
        deadline = time.monotonic() + self._pace.round_s
        for run in runs.values():
            run.blocked = ""
        is_cut = False
        self._served.clear()

        def is_enough() -> bool:
            nonlocal is_cut
            is_cut = self._ending.is_set() or time.monotonic() > deadline
            return is_cut

        wanted = self._wanted(runs)
        piece_bytes = min(_PIECE_BYTES, self._batch_bytes)
        for copied in pull(
            self._read, wanted, piece_bytes=piece_bytes, batch_bytes=lambda: self._batch_bytes, is_enough=is_enough
        ):
            runs[copied.wanted.run].note(copied.wanted.state, copied.error)
        self._serve_last(runs)
        return not is_cut

    def _serve_last(self, runs: Mapping[str, Followed]) -> None:
        """Files and runs that had their turn come last next time."""
        with self._lock:
            for name, path in self._served:
                runs[name].serve_last(path)
                if name in self._followed:
                    self._followed[name] = self._followed.pop(name)

    def _wanted(self, runs: Mapping[str, Followed]) -> Iterator[Wanted]:
        """Pending files, one of each run in turn."""
        queues = deque((name, deque(run.pending.values())) for name, run in runs.items() if run.pending)
        made: set[str] = set()
        while queues:
            name, states = queues.popleft()
            if name not in made:
                made.add(name)
                self._mirror(name).path.mkdir(parents=True, exist_ok=True)
            yield Wanted(name, states.popleft(), self._mirror(name).path)
            if states:
                queues.append((name, states))

    def _read(self, reads: Sequence[Read]) -> list[bytes | None]:
        began = time.monotonic()
        found = self._link.read(reads)
        took_s = max(1e-3, time.monotonic() - began)
        for name, path, _, _ in reads:
            self._served.pop((name, path), None)
            self._served[name, path] = None
        if sum(num_bytes for _, _, _, num_bytes in reads) >= self._batch_bytes // 2:
            fitting = int(self._batch_bytes * min(2.0, _BATCH_S / took_s))
            self._batch_bytes = max(_LEAST_BATCH_BYTES, min(_MOST_BATCH_BYTES, fitting))
        return found

    def _conclude(self, name: str, run: Followed, finishing: Finishing, *, is_gone: bool, now: float) -> None:
        lacks_result = not is_gone and _lacks_result(self._mirror(name))
        run.conclude(finishing, now, lacks_result=lacks_result, patience_s=self._pace.result_patience_s)
        if finishing.is_done and run.refused:
            _log.warning("run %s: its launch is over, and not all could be copied: %s", name, run.problem)

    def _say(self, runs: Mapping[str, Followed]) -> None:
        """Each problem once; and when it is over. A full disk is one problem of all runs."""
        blocked = next((run.blocked for run in runs.values() if run.blocked), "")
        if blocked and not self._said_blocked:
            _log.warning("pool %s: mirrors cannot be written; they go on when they can: %s", self._name, blocked)
        elif self._said_blocked and not blocked:
            _log.info("pool %s: mirrors can be written again", self._name)
        self._said_blocked = blocked
        for name, run in runs.items():
            problem = run.problem
            if problem and not run.said and not run.blocked:
                _log.warning("run %s: its mirror is not complete: %s", name, problem)
            run.said = problem

    # Signs of life.

    def _show_signs(self, runs: Mapping[str, Followed], changes: Changes) -> None:
        for name, alive in changes.alive.items():
            if runs[name].alive != alive:
                launch, at_ns = alive
                if _touch(self._mirror(name).launch(launch).alive, at_ns):
                    runs[name].alive = alive

    # Pushing.

    def _push_all(self) -> float:
        with self._lock:
            runs = dict(self._followed)
        has_failed = False
        for name, run in runs.items():
            size = _size(self._mirror(name).control)
            if size > (run.pushed_bytes or 0):
                has_failed |= not self._push_one(name, run)
        return self._pace.retry_s if has_failed else self._pace.push_s

    def _push_one(self, name: str, run: Followed) -> bool:
        """Send whole lines that the far side lacks; False: it could not be done now.

        Raises:
            BackendError: there is no connection.
        """
        offset, was_known = run.pushed_bytes or 0, run.pushed_bytes is not None
        data = _read_lines(self._mirror(name).control, offset)
        if not data:
            return True
        try:
            size = self._link.append(f"runs/{name}/control.jsonl", offset, data)
        except Gap as gap:  # it was removed there, or cut
            run.pushed_bytes = gap.size
            return True
        except GanglineError as error:
            run.unpushed = f"requests cannot be sent: {error}"
            if isinstance(error, BackendError):
                raise
            return False
        end = offset + len(data)
        here = _size(self._mirror(name).control)
        run.unpushed = ""
        if size > (end if was_known else here):
            run.unpushed = f"its control.jsonl has {size:,} bytes there and {here:,} here: requests may not be heard"
        run.pushed_bytes = max(end, min(size, here))
        return True

    def _mirror(self, name: str) -> RunDir:
        return self._home.run(name)


def _lacks_result(run: RunDir) -> bool:
    """Whether the newest attempt has begun and nothing says how it ended."""
    attempts = run.attempts()
    return bool(attempts) and not attempts[-1].result.exists()


def _read_lines(path: Path, offset: int) -> bytes:
    """Whole lines from an offset on: what is torn may be taken back."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_PUSH_BYTES)
    except OSError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _touch(path: Path, at_ns: int) -> bool:
    """Show the time of a sign of life; False: it could not be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, ns=(at_ns, at_ns))
    except OSError:
        return False
    return True
