"""What all tests share: private state folders, a server for real runs, and proof that nothing is left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
import pytest_socket
from tests.slurm.cluster import ACCOUNTING_PROGRAMS, can_start

TESTS = Path(__file__).resolve().parent
REQUIRE_SERVICES = os.environ.get("GANGLINE_REQUIRE_SERVICES") == "1"
GONE_WITHIN_S = 60.0

SERVICES: dict[str, tuple[Callable[[], bool], str]] = {
    "torch": (lambda: importlib.util.find_spec("torch") is not None, "needs PyTorch: make setup"),
    "metaflow": (lambda: importlib.util.find_spec("metaflow") is not None, "needs Metaflow: make setup"),
    "root": (lambda: os.geteuid() == 0, "needs root"),
    "memory_group": (
        lambda: Path("/sys/fs/cgroup/memory").is_dir() and os.access("/sys/fs/cgroup/memory", os.W_OK),
        "needs a memory control group of version 1 that can be written",
    ),
    "compiler": (lambda: shutil.which("g++") is not None, "needs g++, by which torch.compile builds on a CPU"),
    "ripgrep": (
        lambda: Path(sys.executable).with_name("rg").is_file() or shutil.which("rg") is not None,
        "needs ripgrep: make setup",
    ),
    "pyspy": (lambda: Path(sys.executable).with_name("py-spy").is_file(), "needs py-spy: make setup"),
    "git": (lambda: shutil.which("git") is not None, "needs git"),
    "sshd": (
        lambda: Path("/usr/sbin/sshd").is_file() and shutil.which("ssh") is not None,
        "needs openssh-server and openssh-client",
    ),
    "slurm": (
        can_start,
        "needs root, namespaces and Debian's slurm-wlm, munge, openssh-server, openssh-client, iproute2, procps",
    ),
    "slurmdbd": (lambda: can_start(ACCOUNTING_PROGRAMS), "needs Debian's slurmdbd and mariadb-server"),
}
"""Marker -> whether this machine has it, and what to say if not."""


def pytest_configure() -> None:
    """Whoever starts the tests in the background, or by `nohup`, has them ignore signals that they are about."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Tests of the Slurm cluster, which use it one after another, go to one worker; all else where there is room."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - not with `-p no:xdist`

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "slurm" if nodeid.startswith("tests/slurm/") else nodeid

    return Scheduling(config, log)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """For `.ci/run`: only where every test has run, and some have failed, is there anything to try again."""
    if session.config.cache is not None and not hasattr(session.config, "workerinput"):
        session.config.cache.set("gangline/exit", int(exitstatus))


def pytest_runtest_setup(item: pytest.Item) -> None:
    _skip_or_fail(item)
    if TESTS / "unit" in item.path.parents:
        pytest_socket.disable_socket(allow_unix_socket=True)  # event loops need a socket pair


def pytest_runtest_teardown() -> None:
    pytest_socket.enable_socket()


def _skip_or_fail(item: pytest.Item) -> None:
    for marker, (is_there, need) in SERVICES.items():
        if item.get_closest_marker(marker) is None or is_there():
            continue
        lack(need)


def lack(need: str) -> NoReturn:
    """Skip a test for want of something; where CI demands it, fail."""
    if REQUIRE_SERVICES:
        pytest.fail(f"{need} (GANGLINE_REQUIRE_SERVICES=1 turns skips into failures)", pytrace=False)
    pytest.skip(need)


@pytest.fixture(autouse=True)
def _private_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test may see the real state folder, nor settings of the shell or of a run that surrounds the tests."""
    for name in list(os.environ):
        if name.startswith("GANGLINE_") and name != "GANGLINE_REQUIRE_SERVICES":
            monkeypatch.delenv(name)
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path_factory.getbasetemp() / "unused-home"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of this test alone, named by GANGLINE_HOME; no process that uses it may outlive the test."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GANGLINE_HOME", str(folder))
    yield folder
    stop_server(folder)
    assert_nothing_left(folder)


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder with a running embedded server, one for each test worker; checked for leftovers at the end."""
    folder = tmp_path_factory.mktemp("shared-home")
    gangline("ps", home=folder)  # the first command that needs a server starts it
    yield folder
    stop_server(folder)
    assert_nothing_left(folder)


@pytest.fixture
def shared_server(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared server, as the one that this test's commands and clients talk to. Returns its state folder."""
    monkeypatch.setenv("GANGLINE_HOME", str(shared_home))
    return shared_home


@pytest.fixture
def free_port() -> int:
    """A port of the loopback interface that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gangline(
    *args: str, home: Path, cwd: Path | None = None, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run the command line against a state folder; never raises for its exit code."""
    command = [str(Path(sys.executable).with_name("gangline")), *args]
    env = {**os.environ, "GANGLINE_HOME": str(home)}
    return subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=timeout_s, check=False)


def stop_server(home: Path) -> None:
    """End the embedded server of a state folder, if there is one.

    Of several that were started at once, one that still begins may take the place of the one that is ended.
    """
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        if (home / "server.json").exists():
            gangline("server", "stop", home=home)
        if not any(_is_server(process) for process in processes_of(home)):
            return
        time.sleep(0.1)


def _is_server(process: psutil.Process) -> bool:
    try:
        return "gangline.server" in process.cmdline()
    except psutil.Error:
        return False


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process whose arguments or environment name the folder: server, agents, warm helpers and ranks all do."""
    mark = str(folder)
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            texts = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(mark in text for text in texts):
            found.append(process)
    return found


def assert_nothing_left(folder: Path, within_s: float = GONE_WITHIN_S) -> None:
    """Wait for the processes of a state folder to end; what is still there is killed, and fails the test."""
    deadline = time.monotonic() + within_s
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    described = [f"{process.pid} {' '.join(process.cmdline())[:200]}" for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not described, f"processes left behind: {described}"
