"""A node's part of the preflight checks: the disk here, devices and all-reduce by a program of the ranks' interpreter.

Standard library only.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.agent.environ import AttemptTerms
from gangline.agent.loop import Loop, Timer
from gangline.agent.memory import format_bytes
from gangline.agent.site import Site
from gangline.agent.storage import LEAST_FREE_BYTES

__all__ = ["JOB_CHECKS", "NodeChecks", "check_disk"]

JOB_CHECKS = ("device", "allreduce")
_PROBE_BYTES = 4 << 20
_LEAST_INODES = 100
_SLACK_S = 10.0
"""For the program's own start, and to tell of a time-out by itself."""
_LONGEST_BYTES = 1 << 16


class NodeChecks:
    """Runs the checks of one attempt, and reports their results once all are there.

    Args:
        helpers: takes the pids of what runs, so that ending an attempt spares them; `cancel` ends them.
        report: takes `{"say": "checked", ...}`.
    """

    def __init__(self, site: Site, loop: Loop, *, helpers: set[int], report: Callable[[dict[str, Any]], None]) -> None:
        self._site = site
        self._loop = loop
        self._helpers = helpers
        self._report = report
        self._attempt = -1
        self._results: list[dict[str, Any]] = []
        self._jobs: dict[int, subprocess.Popen[bytes]] = {}
        self._output: dict[int, bytes] = {}
        self._disk = False
        self._names: list[str] = []
        self._timer: Timer | None = None

    def begin(self, order: Mapping[str, Any], terms: AttemptTerms) -> None:
        """Start all checks that the order names."""
        self._attempt, self._results = order["attempt"], []
        names: Sequence[str] = order["checks"]
        self._names = [name for name in JOB_CHECKS if name in names]
        self._disk = "disk" in names
        if self._disk:
            self._look_at_disks()
        if self._names:
            timeout_s = self._site.launch.preflight.timeout_s
            for rank in terms.shape.ranks_of(self._site.index):
                self._start_job(rank, self._site.environment_of(rank, terms), timeout_s)
            self._timer = self._loop.after(timeout_s + _SLACK_S, self._on_timeout)
        self._finish_if_done()

    def cancel(self) -> None:
        """End what runs; nothing is reported any more."""
        self._attempt = -1
        for rank in list(self._jobs):
            self._end_job(rank)
        if self._timer is not None:
            self._timer.cancel()

    def _look_at_disks(self) -> None:
        launch = self._site.launch
        outputs = [str((self._site.workdir / output).parent) for output in launch.outputs]
        paths = [str(self._site.run.path), launch.checkpoint.path or "", tempfile.gettempdir(), *outputs]
        attempt, read_end, found = self._attempt, *_pipe_of(lambda: check_disk(dict.fromkeys(paths)))

        def take() -> None:
            self._loop.unwatch(read_end)
            os.close(read_end)
            if attempt == self._attempt:
                self._disk = False
                self._results.append(found[0])
                self._finish_if_done()

        self._loop.watch(read_end, take)

    def _start_job(self, rank: int, env: Mapping[str, str], timeout_s: float) -> None:
        source = pkgutil.get_data("gangline.agent", "checkjob.py") or b""
        floor = self._site.launch.preflight.min_bandwidth_bytes or 0
        argv = [self._site.launch.python, "-c", source.decode(), ",".join(self._names), str(timeout_s), str(floor)]
        try:
            job = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=dict(env),
            )
        except OSError as error:
            self._fail(f"{argv[0]} cannot be started: {error}")
            return
        assert job.stdout is not None  # noqa: S101 - a pipe was asked for
        os.set_blocking(job.stdout.fileno(), False)
        self._jobs[rank], self._output[rank] = job, b""
        self._helpers.add(job.pid)
        self._loop.watch(job.stdout, lambda: self._read(rank))

    def _read(self, rank: int) -> None:
        job = self._jobs.get(rank)
        if job is None or job.stdout is None:
            return
        data = job.stdout.read(_LONGEST_BYTES)
        if data is None:
            return
        if data:
            self._output[rank] = (self._output[rank] + data)[-_LONGEST_BYTES:]
            return
        code = self._end_job(rank)
        results = _parse(self._output[rank])
        if results is None:
            self._fail(f"its program ended with code {code} and said nothing", rank)
        else:
            self._results += [{**result, "rank": rank} for result in results]
        self._finish_if_done()

    def _on_timeout(self) -> None:
        for rank in list(self._jobs):
            self._end_job(rank)
            self._fail(f"not done after {self._site.launch.preflight.timeout_s:g} s", rank)
        self._finish_if_done()

    def _fail(self, text: str, rank: int | None = None) -> None:
        self._results.append({"check": self._names[-1], "ok": False, "text": text, "rank": rank})

    def _end_job(self, rank: int) -> int:
        job = self._jobs.pop(rank)
        if job.stdout is not None:
            self._loop.unwatch(job.stdout)
            job.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            job.wait(0.5 if self._output[rank] else 0)
        with suppress(OSError):
            os.killpg(job.pid, 9)
        self._helpers.discard(job.pid)
        return job.wait()

    def _finish_if_done(self) -> None:
        if self._disk or self._jobs or self._attempt < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        attempt, self._attempt = self._attempt, -1
        self._report({"say": "checked", "attempt": attempt, "results": self._results})


def check_disk(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Write a little to each folder, wait until it is on the disk, read it, and look at what is left."""
    slowest = float("inf")
    for path in filter(None, paths):
        try:
            speed = _probe(Path(path))
            volume = os.statvfs(path)
        except OSError as error:
            return {"check": "disk", "ok": False, "text": f"{path} cannot be written: {error.strerror or error}"}
        free_bytes = volume.f_bavail * volume.f_frsize
        if volume.f_blocks and free_bytes < LEAST_FREE_BYTES:
            text = (
                f"{path} has {format_bytes(free_bytes)} left; at least {format_bytes(LEAST_FREE_BYTES)} are asked for"
            )
            return {"check": "disk", "ok": False, "text": text, "measured": free_bytes}
        if volume.f_files and volume.f_favail < _LEAST_INODES:
            text = f"{path} has room for {volume.f_favail} more files"
            return {"check": "disk", "ok": False, "text": text, "measured": volume.f_favail}
        slowest = min(slowest, speed)
    return {"check": "disk", "ok": True, "text": f"{slowest / 1e6:.0f} MB/s to the slowest folder", "measured": slowest}


def _probe(folder: Path) -> float:
    """Bytes a second, of a few."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".gangline-check.", dir=folder)
    content = os.urandom(_PROBE_BYTES)
    try:
        began = time.perf_counter()
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            if file.write(content) != len(content):
                raise OSError(28, "No space left on device")
            os.fsync(file.fileno())
        took_s = time.perf_counter() - began
        if Path(name).read_bytes() != content:
            raise OSError(5, "what was read is not what was written")
    finally:
        Path(name).unlink(missing_ok=True)
    return len(content) / max(took_s, 1e-9)


def _pipe_of(work: Callable[[], dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """Do something that may block on a thread beside; the pipe turns readable when its result is in the list."""
    read_end, write_end = os.pipe()
    found: list[dict[str, Any]] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            os.close(write_end)

    threading.Thread(target=run, name="gangline-disk-check", daemon=True).start()
    return read_end, found


def _parse(output: bytes) -> list[dict[str, Any]] | None:
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, list):
                return found
    return None
