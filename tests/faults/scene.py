"""A real gang of real torch ranks, the faults that can be put into it, and what has to be true afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.conftest import processes_of

from gangline.client import Client
from gangline.rundir.files import is_temporary
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import AttemptDir, RunDir

__all__ = ["EVERY", "FAULTS", "SCRIPT", "STEPS", "Fault", "Scene"]

STEPS = 40
HELD = 32
"""Step at which ranks wait until the fault has struck; the next save follows soon."""
EVERY = 5
"""Steps from one checkpoint to the next."""
RANKS = 4
PATIENCE_S = 90.0

SCRIPT = f"""
import os, pathlib, resource, time
import torch
import torch.distributed as dist
import gangline
from gangline.training import writer

dist.init_process_group("gloo")
me = gangline.current()
now = time.time
orders = pathlib.Path(os.environ["ORDERS"])
found = gangline.latest_checkpoint()
first = found.step if found else 0
print("from", first)

def obey():
    mine = f"{{me.attempt}}-{{me.rank}}"
    if (orders / f"raise-{{mine}}").exists():
        raise ValueError("an order")
    if (orders / f"exit-{{mine}}").exists():
        os._exit(7)
    if (orders / f"limit-{{mine}}").exists():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, resource.RLIM_INFINITY))
        torch.ones(1 << 30)
    if (orders / f"stuck-{{mine}}").exists():
        time.sleep(1000)
    if (orders / f"grow-{{mine}}").exists():
        held = [bytearray(1 << 24) for _ in range(256)]
    for shift in orders.glob(f"clock-{{os.environ['NODE_RANK']}}-*"):
        time.time = writer._time = lambda: now() + (3600.0 if shift.name.endswith("ahead") else -3600.0)

for step in range(first + 1, {STEPS} + 1):
    time.sleep(0.02)
    obey()
    while step == {HELD} and not (orders / "go-on").exists():
        time.sleep(0.02)
        obey()
    dist.all_reduce(torch.ones(1))
    print("step", step)
    gangline.log({{"loss": 1.0 / step}}, step=step)
    gangline.progress(step, {STEPS})
    if step % {EVERY} == 0:
        with gangline.checkpoint(step) as folder:
            (folder / f"rank-{{me.rank}}").write_bytes(os.urandom(1000))
            if step == {HELD + 3} and (orders / "slow").exists():
                time.sleep(17.0)
"""


@dataclass(slots=True, kw_only=True)
class Scene:
    """One run, as a fault finds it."""

    client: Client
    run_id: str
    home: Path
    folder: Path
    """Of this test alone; `orders` and, where it is mounted, `disk` lie in it."""
    chance: random.Random
    undo: list[Callable[[], object]] = field(default_factory=list)
    """What takes a fault back, once the gang has felt it."""

    @property
    def dir(self) -> RunDir:
        return RunDir(self.home / "runs" / self.run_id)

    @property
    def attempt(self) -> dict[str, Any]:
        return self.client.run(self.run_id)["attempts"][-1]

    def pid(self, rank: int) -> int:
        return next(one["pid"] for one in self.attempt["ranks"] if one["rank"] == rank)

    def agent(self, node: int) -> int:
        return next(one["agent_pid"] for one in self.attempt["nodes"] if one["node"] == node)

    def order(self, name: str) -> None:
        (self.folder / "orders" / name).touch()

    def saved(self, attempt: int) -> list[int]:
        """Steps whose commit an attempt has recorded."""
        lines = [line for rank in self.dir.metric_ranks() for line in _lines(self.dir.metrics(rank))]
        return [line["s"] for line in lines if line["k"] == "c" and line["a"] == attempt]

    def _temporary_files(self) -> list[Path]:
        return [path for path in self.dir.path.rglob("*") if is_temporary(path.name)]

    def clock_spread_s(self) -> float:
        """How far apart the times are that ranks wrote."""
        times = [line["t"] for rank in self.dir.metric_ranks() for line in _lines(self.dir.metrics(rank))]
        return float(max(times) - min(times))

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"{what} was not seen; the run: {self.client.run(self.run_id)['message']}"
            )
            time.sleep(0.02)

    def wait_for_the_end(self) -> dict[str, Any]:
        run = self.client.wait(self.run_id, timeout_s=PATIENCE_S)
        assert run["ended"] is not None, f"still {run['phase']}: {run['message']}"
        return self.client.run(self.run_id)

    # What has to be true

    def check_nothing_left(self) -> None:
        self.until(lambda: not self._processes(), "the end of every process")
        self.until(lambda: not self._temporary_files(), "the end of every temporary file")  # the server writes run.json

    def _processes(self) -> list[psutil.Process]:
        mark = f"GANGLINE_RUN_DIR={self.dir.path}"
        return [process for process in processes_of(self.dir.path) if mark]

    def check_logs(self) -> None:
        """Every attempt of every rank begins where its checkpoint ends, and no line of it is lost."""
        for attempt in self.dir.attempts():
            for rank in attempt.ranks():
                lines = [line.split() for line in attempt.log(rank).read_text().splitlines()]
                words = [line for line in lines if line and line[0] in {"from", "step"}]
                if words:
                    first = int(words[0][1])
                    assert [int(step) for _, step in words[1:]] == list(range(first + 1, first + len(words)))
                    assert [first] == self._resume_steps(attempt)

    def _resume_steps(self, attempt: AttemptDir) -> list[int]:
        """The step that an attempt went on from; [] where it did not come so far."""
        events = read_journal(attempt.events(0))
        return [event["resume_step"] or 0 for event in events if event["kind"] == "attempt_started"]

    def check_resume(self, attempt: int) -> None:
        """The first attempt that starts after `attempt` goes on from the newest checkpoint that counts."""
        later = self.dir.attempts()[attempt + 1 :]
        resumed = next(step for one in later for step in self._resume_steps(one))
        newest = max((step for number in range(attempt + 1) for step in self.saved(number)), default=0)
        assert resumed % EVERY == 0
        # A rank may be killed between the commit and its record: then one more counts than was recorded.
        assert newest <= resumed <= newest + EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which a gang is hit."""

    name: str
    strike: Callable[[Scene, int], None]
    """Hit a rank, or what it needs."""
    reasons: frozenset[str]
    """What the attempt may be said to have ended with; none: it must not end."""
    blames: bool = True
    """The rank that was hit is named as the first that failed."""
    needs: str = ""
    """`root`, `memory group` or ""."""
    hang_timeout_s: float = 600.0
    """Longer than a start takes on a busy machine, also where it is short: PyTorch's store tries again in seconds."""
    on_disk: bool = False
    """The checkpoints lie on a file system of their own, of 40 MB."""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    yield from read_journal(path)


def _kill(number: int) -> Callable[[Scene, int], None]:
    def strike(scene: Scene, rank: int) -> None:
        os.kill(scene.pid(rank), number)

    return strike


def _order(name: str) -> Callable[[Scene, int], None]:
    def strike(scene: Scene, rank: int) -> None:
        scene.order(f"{name}-{scene.attempt['number']}-{rank}")

    return strike


def _kill_agent(scene: Scene, rank: int) -> None:
    os.kill(scene.agent(rank // 2), signal.SIGKILL)


def _freeze_node(scene: Scene, _rank: int) -> None:
    """All of node 1 stops, as a machine that is suspended or out of memory: its agent, its ranks, its guardian."""
    agent = psutil.Process(scene.agent(1))
    for process in [agent, *agent.children(recursive=True)]:
        process.suspend()


def _kill_server(scene: Scene, _rank: int) -> None:
    os.kill(scene.client.health()["pid"], signal.SIGKILL)


def _shift_clock(scene: Scene, _rank: int) -> None:
    """An hour on or back, for the ranks of one node."""
    scene.order(f"clock-{scene.chance.randrange(2)}-{scene.chance.choice(['ahead', 'back'])}")


def _slow(scene: Scene, _rank: int) -> None:
    scene.order("slow")


def _fill(scene: Scene, _rank: int) -> None:
    filler = scene.folder / "disk" / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    scene.undo.append(filler.unlink)


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
MOST_BYTES = 1 << 30


def _memory_limit(scene: Scene, rank: int) -> None:
    """Put the agent of a rank, and all below it, into a memory group of its own, and let the rank grow."""
    agent = psutil.Process(scene.agent(rank // 2))
    group = MEMORY_GROUPS / f"gangline-test-{agent.pid}"
    group.mkdir()
    for process in [agent, *agent.children(recursive=True)]:
        with suppress(OSError):
            (group / "cgroup.procs").write_text(str(process.pid))
    (group / "memory.limit_in_bytes").write_text(str(MOST_BYTES))
    scene.undo.append(lambda: _remove_group(group))
    _order("grow")(scene, rank)


def _remove_group(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (group.parent / "cgroup.procs").write_text(pid)
    with suppress(OSError):
        group.rmdir()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 40 MB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


KILLED, USER, MEMORY = frozenset({"killed"}), frozenset({"user_error"}), frozenset({"out_of_memory"})
HANG = frozenset({"hang"})

FAULTS: tuple[Fault, ...] = (
    Fault(name="kill -9", strike=_kill(signal.SIGKILL), reasons=KILLED),
    Fault(name="kill -15", strike=_kill(signal.SIGTERM), reasons=KILLED),
    Fault(name="crash", strike=_kill(signal.SIGSEGV), reasons=USER),
    Fault(name="exception", strike=_order("raise"), reasons=USER),
    Fault(name="exit code", strike=_order("exit"), reasons=USER),
    Fault(name="memory limit", strike=_order("limit"), reasons=MEMORY),
    Fault(name="memory group", strike=_memory_limit, reasons=MEMORY, needs="memory group"),
    Fault(name="stopped", strike=_kill(signal.SIGSTOP), reasons=HANG, hang_timeout_s=8.0),
    Fault(name="stuck", strike=_order("stuck"), reasons=HANG, hang_timeout_s=8.0),
    Fault(name="agent killed", strike=_kill_agent, reasons=frozenset({"node_lost"}), blames=False),
    Fault(name="node frozen", strike=_freeze_node, reasons=frozenset({"node_lost"}), blames=False),
    Fault(name="server killed", strike=_kill_server, reasons=frozenset()),
    Fault(name="slow storage", strike=_slow, reasons=frozenset(), hang_timeout_s=8.0),
    Fault(name="clock shift", strike=_shift_clock, reasons=frozenset()),
    Fault(name="full disk", strike=_fill, reasons=frozenset({"storage"}), blames=False, needs="root", on_disk=True),
)
