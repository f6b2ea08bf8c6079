"""Medians, pairs measured in turns, and what machine this is. Standard library only."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
GANGLINE = str(Path(sys.executable).with_name("gangline"))
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
RANKS = Path(__file__).resolve().parent / "ranks"
WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the page: what was measured, ours, and the peer's of the same run."""

    what: str
    unit: str
    ours: float
    peer: float | None = None
    peer_is: str = ""
    goal: str
    met: bool | None = None
    """None where there is nothing to compare with."""
    samples: int = 1
    spread: tuple[float, float] | None = None
    """Smallest and largest of ours."""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Place:
    """A private state folder with a server of its own; everything in it is gone at the end."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def gangline(self, *args: str, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line here.

        Raises:
            RuntimeError: it failed; with what it said.
        """
        command = [GANGLINE, *args]
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=self.env, text=True, capture_output=True, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    @contextmanager
    def client(self) -> Iterator[Any]:
        """The Python client, connected to this place's server."""
        from gangline.client import connect

        old = os.environ.get("GANGLINE_HOME")
        os.environ["GANGLINE_HOME"] = self.env["GANGLINE_HOME"]
        try:
            with connect() as client:
                yield client
        finally:
            os.environ.pop("GANGLINE_HOME") if old is None else os.environ.__setitem__("GANGLINE_HOME", old)

    def project(self, *scripts: str) -> Path:
        """A new folder with copies of these rank scripts: what is submitted from it is small."""
        folder = Path(mkdtemp(prefix="project-", dir=self.folder))
        for script in scripts:
            shutil.copy(RANKS / script, folder / script)
        return folder

    def out(self) -> Path:
        """A new folder that ranks report into."""
        return Path(mkdtemp(prefix="out-", dir=self.folder))


@contextmanager
def new_place() -> Iterator[Place]:
    """A place with its server up."""
    folder = Path(mkdtemp(prefix="gangline-bench-"))
    env = {key: value for key, value in os.environ.items() if not key.startswith("GANGLINE_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    place = Place(folder, {**env, "GANGLINE_HOME": str(folder / "home")})
    try:
        place.gangline("ps")
        yield place
    finally:
        place.gangline("server", "stop", check=False)
        shutil.rmtree(folder, ignore_errors=True)


def in_turns(ours: Callable[[], float], peer: Callable[[], float], *, times: int) -> tuple[list[float], list[float]]:
    """Measure one after the other, `times` times, after one of each that does not count."""
    ours(), peer()
    pairs = [(ours(), peer()) for _ in range(times)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def row_of(values: Sequence[float], peer: Sequence[float], *, limit: float, **words: Any) -> Row:
    """A row whose goal is a limit on the ratio of medians."""
    mine, theirs = statistics.median(values), statistics.median(peer)
    met = mine / theirs <= limit
    return Row(ours=mine, peer=theirs, met=met, samples=len(values), spread=(min(values), max(values)), **words)


def wait_until(condition: Callable[[], Any], *, what: str, timeout_s: float = WAIT_S, pause_s: float = 0.002) -> Any:
    """The first true answer.

    Raises:
        TimeoutError: there was none in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(pause_s)
    return answer


def command_time_s(command: Sequence[str], *, env: dict[str, str] | None = None) -> float:
    """Seconds that a whole process takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    return time.perf_counter() - started


def describe_machine() -> dict[str, str]:
    """What the figures were measured on."""
    names = ("gangline", "torch", "fastapi", "uvicorn", "sqlalchemy", "pydantic", "httpx", "click")
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in names),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
