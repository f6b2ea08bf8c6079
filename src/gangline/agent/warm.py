"""Warm start, the agent's side: a helper process that imports once, and ranks that it forks. Standard library only.

The helper is `warmhelper.py`; what a forked rank does first is `warmchild.py`. Ranks are children of the agent, as
under exec start, so that their ends are seen here whatever becomes of the helper. When the helper cannot serve (an
import fails, it dies, it takes too long), ranks start by exec, and `fallback_reason` says why.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from gangline.agent.commandline import script_word
from gangline.agent.execstart import exit_of
from gangline.agent.inject import PROBE, render_helper_environment, render_settings
from gangline.agent.preload import is_read_at_start
from gangline.agent.processes import adopt_orphans
from gangline.agent.starter import RankExit, RankStart, Starter

__all__ = [
    "Helper",
    "HelperPlan",
    "WarmStarter",
    "decide_helper_environment",
    "render_interpreter_argv",
    "render_request",
]

_IMPORT_TIMEOUT_S = 180
_ANSWER_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_MOST_HELPERS = 3
_RSS_UNIT_BYTES = 1024
_TAIL_BYTES = 2_000
_OF_A_RANK = frozenset(
    {
        "GANGLINE_ATTEMPT",
        "GANGLINE_RESUME",
        "GROUP_RANK",
        "JAX_PROCESS_ID",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "RANK",
        "ROLE_RANK",
        "TF_CONFIG",
        "TORCHELASTIC_RESTART_COUNT",
    }
)
"""Variables that differ between ranks or attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperPlan:
    """How the helper is started: as the interpreter of a rank would be."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Of a rank, without what differs between ranks and attempts."""
    path_start: str
    """What stands in front of `sys.path` in ranks."""
    modules: tuple[str, ...]
    """What to import, in order; `?` in front: may be missing, `+`: the spec lists it."""
    folder: Path
    """Where `inject.write_injected` wrote."""

    def suits(self, rank: RankStart) -> bool:
        """Whether a fork of this helper is what a fresh start of the rank would be."""
        same = (_argv(rank), rank.cwd) == (self.argv, self.cwd)
        return same and _at_start(rank.env) == _at_start(self.env)


class HelperLost(Exception):
    """The helper can serve no longer; says why."""


class WarmStarter:
    """Starts ranks by forking the helper, and by exec once that is no longer possible."""

    def __init__(self, plan: HelperPlan, *, exec_starter: Callable[[], Starter]) -> None:
        """Start the helper, which begins to import at once.

        Args:
            exec_starter: makes the starter that takes over.
        """
        self.fallback_reason: str | None = None
        """Why ranks start by exec although warm start was chosen; None while it works."""
        self._plan = plan
        self._make_exec = exec_starter
        self._exec: Starter | None = None
        self._epoll = select.epoll()
        self._ranks: dict[int, int | None] = {}
        """Pid of each live rank, and its pidfd where the kernel has those."""
        self._helpers_left = _MOST_HELPERS
        self._helper: Helper | None = None
        adopt_orphans()
        self._launch_helper()

    @property
    def mode(self) -> str:
        return "exec" if self.fallback_reason else "warm"

    def fileno(self) -> int:
        return self._epoll.fileno()

    def ready(self) -> bool:
        if self._helper is None:
            return True
        try:
            return self._helper.poll()
        except HelperLost as lost:
            self._fall_back(str(lost))
            return True

    def own_pids(self) -> frozenset[int]:
        return frozenset({self._helper.pid} if self._helper is not None else ())

    def start(self, rank: RankStart) -> int:
        try:
            helper = self._helper_for(rank)
            if helper is None:
                return self._start_by_exec(rank)
            pid = helper.fork(render_request(rank, parent=os.getpid()))
        except HelperLost as lost:
            self._fall_back(str(lost))
            return self._start_by_exec(rank)
        self._track(pid)
        return pid

    def exits(self) -> list[RankExit]:
        self.ready()  # takes note when the helper has died
        ended = [gone for pid in sorted(self._ranks) if (gone := _wait(pid)) is not None]
        for gone in ended:
            descriptor = self._ranks.pop(gone.pid)
            if descriptor is not None:
                self._epoll.unregister(descriptor)
                os.close(descriptor)
        return ended + (self._exec.exits() if self._exec is not None else [])

    def close(self) -> None:
        self._drop_helper()
        for descriptor in filter(None, self._ranks.values()):
            os.close(descriptor)
        self._ranks.clear()
        if self._exec is not None:
            self._exec.close()
        self._epoll.close()

    def _helper_for(self, rank: RankStart) -> Helper | None:
        """The helper, started anew if this rank needs another start of the interpreter than it had.

        Raises:
            HelperLost.
        """
        if self._helper is not None and not self._plan.suits(rank):
            self._drop_helper()
            env = decide_helper_environment(rank.env)
            self._plan = replace(self._plan, argv=_argv(rank), cwd=rank.cwd, env=env)
            self._launch_helper()
        if self._helper is not None:
            self._helper.await_ready()
        return self._helper

    def _launch_helper(self) -> None:
        if self._helpers_left == 0:
            self._fall_back("its ranks differ in what an interpreter reads at its start")
            return
        self._helpers_left -= 1
        try:
            self._helper = Helper(self._plan)
        except OSError as error:
            self._fall_back(f"its helper could not be started ({error})")
            return
        self._epoll.register(self._helper.fileno(), select.EPOLLIN)

    def _drop_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            self._epoll.unregister(helper.fileno())
            helper.close()

    def _fall_back(self, reason: str) -> None:
        self._drop_helper()
        self.fallback_reason = f"Ranks start by exec, not warm: {reason}."

    def _start_by_exec(self, rank: RankStart) -> int:
        if self._exec is None:
            self._exec = self._make_exec()
            self._epoll.register(self._exec.fileno(), select.EPOLLIN)
        return self._exec.start(rank)

    def _track(self, pid: int) -> None:
        descriptor = None
        with suppress(OSError):  # an old kernel: `exits` looks whenever it is called
            descriptor = os.pidfd_open(pid)
            self._epoll.register(descriptor, select.EPOLLIN)
        self._ranks[pid] = descriptor


class Helper:
    """The helper process and the agent's end of the socket to it."""

    def __init__(self, plan: HelperPlan) -> None:
        """Start it.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self._ready = False
        self._received = b""
        self._socket, theirs = socket.socketpair()
        self._output: IO[bytes] = tempfile.TemporaryFile(dir=plan.folder)  # noqa: SIM115 - closed in `close`
        with theirs:
            try:
                self._process = self._start(plan, theirs.fileno())
            except OSError:
                self._socket.close()
                self._output.close()
                raise

    def _start(self, plan: HelperPlan, descriptor: int) -> subprocess.Popen[bytes]:
        env = render_helper_environment(
            plan.env,
            folder=plan.folder,
            socket=descriptor,
            start=plan.path_start,
            modules=plan.modules,
            timeout_s=_IMPORT_TIMEOUT_S,
        )
        with Path(os.devnull).open("rb") as nothing:
            return subprocess.Popen(
                [plan.argv[0], "-c", PROBE, *plan.argv],
                stdin=nothing,
                stdout=self._output,
                stderr=self._output,
                cwd=plan.cwd,
                env=env,
                pass_fds=[descriptor],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self) -> bool:
        """Whether it is ready to fork; never blocks.

        Raises:
            HelperLost: it never will be.
        """
        message = self._receive(timeout_s=0.0)
        if message is not None:
            self._note_ready(message)
        return self._ready

    def await_ready(self) -> None:
        """Block until it is ready to fork.

        Raises:
            HelperLost: it never will be.
        """
        while not self._ready:
            message = self._receive(timeout_s=_IMPORT_TIMEOUT_S + _ANSWER_TIMEOUT_S)
            if message is None:
                raise HelperLost("its helper neither became ready nor ended")
            self._note_ready(message)

    def fork(self, request: bytes) -> int:
        """Have a rank forked; its pid. The rank is a child of this process.

        Raises:
            HelperLost: it is gone or hangs; nothing runs for this request, or it ends at once.
            OSError: no process could be made.
        """
        try:
            self._socket.settimeout(_ANSWER_TIMEOUT_S)
            self._socket.sendall(request)
        except OSError as error:
            raise HelperLost(self._death()) from error
        answer = self._receive(timeout_s=_ANSWER_TIMEOUT_S)
        if answer is None:
            self._process.kill()  # first, so that it cannot let a rank run whose pid nobody reads any more
            self._process.wait()
            with suppress(HelperLost):
                answer = self._receive(timeout_s=0.0)
        if answer is None:
            raise HelperLost(f"its helper did not answer within {_ANSWER_TIMEOUT_S:.0f} s")
        if "error" in answer:
            raise OSError(answer["error"])
        return int(answer["pid"])

    def close(self) -> None:
        """End it: it leaves when the socket is closed, and is killed if it does not."""
        self._socket.close()
        self._output.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S if self._ready else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _note_ready(self, message: Mapping[str, Any]) -> None:
        if "failed" in message:
            raise HelperLost(str(message["failed"]))
        self._ready = True

    def _receive(self, *, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None when there is none in time.

        Raises:
            HelperLost: the helper is gone.
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            readable, _, _ = select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                return None
            try:
                piece = self._socket.recv(65_536)
            except OSError:
                piece = b""
            if not piece:
                raise HelperLost(self._death())
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _death(self) -> str:
        """How the helper ended, and the last that it said."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT_S)
        code = self._process.returncode
        if code == -signal.SIGALRM:
            return f"imports took longer than {_IMPORT_TIMEOUT_S} s"
        how = (
            "is not there any more"
            if code is None
            else f"was ended by signal {-code}"
            if code < 0
            else f"ended with exit code {code}"
        )
        size = self._output.seek(0, os.SEEK_END)
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode("utf-8", "replace")
        last = tail.strip().rpartition("\n")[2]
        return f"its helper {how}" + (f" ({last})" if last else "")


def render_interpreter_argv(python: str, entry_kind: str, entry: str, args: Sequence[str]) -> tuple[str, ...]:
    """What a shell would start a script or a module with. Pure."""
    return (python, *(("-m", entry) if entry_kind == "module" else (script_word(entry),)), *args)


def decide_helper_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank without what differs between ranks and attempts. Pure."""
    return {name: value for name, value in env.items() if name not in _OF_A_RANK}


def render_request(rank: RankStart, *, parent: int) -> bytes:
    """One line of JSON for the helper. Text travels as its bytes, one character each: no locale is involved. Pure.

    Args:
        parent: pid of the agent.
    """
    request = {
        "parent": parent,
        "cwd": rank.cwd,
        "env": dict(rank.env),
        "log_path": rank.log_path,
        "settings": render_settings(rank),
    }
    return json.dumps(_to_wire(request)).encode() + b"\n"


def _to_wire(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return os.fsencode(value).decode("latin-1")
    if isinstance(value, dict):
        return {_to_wire(key): _to_wire(one) for key, one in value.items()}
    return value


def _argv(rank: RankStart) -> tuple[str, ...]:
    return render_interpreter_argv(rank.python, rank.entry_kind, rank.entry, rank.args)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if is_read_at_start(name)}


def _wait(pid: int) -> RankExit | None:
    try:
        found, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else waited for it; all that is certain is that it is gone
        return RankExit(pid=pid, exit_code=None, signal=int(signal.SIGKILL), time=time.time())
    return exit_of(pid, status, peak_rss_bytes=usage.ru_maxrss * _RSS_UNIT_BYTES) if found else None
