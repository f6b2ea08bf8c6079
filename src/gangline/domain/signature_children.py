"""Rows of the table of signatures: processes that a rank has started, and lost. Pure data; standard library only.

A worker that dies is seen in many ways: by a handler of signals, by a socket that breaks off, by a file that is gone.
Where the rank could tell how its process ended (`failure.py`), that counts.
"""

from __future__ import annotations

from gangline.domain.phase import Reason
from gangline.domain.signatures import Evidence, Pattern, Signature

__all__ = ["CHILDREN"]

_LOADER = r"^data loader worker (?P<pid>\d+) "
_CHILD = r"^process (?P<pid>\d+) "
_KILLED = "(?:SIGKILL|SIGTERM|SIGINT|SIGHUP)$"
_CRASHED = "(?P<how>SIG(?!KILL|TERM|INT|HUP|BUS$)[A-Z0-9]+)$"
_SPAWNED = r"(?:^process \d+ terminated with signal |died with <Signals\.)"
"""How `torch.multiprocessing.spawn` and `subprocess` say it."""
_POOL = r"\.BrokenProcessPool$"
_BROKEN = r"^(Connection\w*Error|BrokenPipeError|EOFError|FileNotFoundError)$"
_PRINTED = r"^ERROR: Unexpected (?P<how>segmentation fault|floating-point exception) encountered in worker"
_MEMORY = "Lower num_workers or prefetch_factor, load less into each worker, or ask for more with --memory."
_LOOK = "Look at what that process does and prints"
_RESET = "[Errno 104] Connection reset by peer"

CHILDREN = (
    Signature(
        id="worker_killed_for_memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="lost a data loader worker, which the kernel killed because memory ran out",
        hint=_MEMORY,
        patterns=(
            Pattern(text=r"DataLoader worker .*(?:signal: Killed|exited unexpectedly)", killed_for_memory=True),
            Pattern(child=f"{_LOADER}SIGKILL$", killed_for_memory=True),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="DataLoader worker (pid 4711) is killed by signal: Killed.",
                killed_for_memory=True,
            ),
        ),
    ),
    Signature(
        id="worker_killed",
        reason=Reason.KILLED,
        sentence="lost a data loader worker, which somebody killed",
        hint="Look at the node's memory first: a worker that is killed has most often used too much of it. Lower num_workers "
        "or prefetch_factor, or ask for more with --memory.",
        patterns=(
            Pattern(text=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?:Killed|Terminated)"),
            Pattern(child=_LOADER + _KILLED),
        ),
        examples=(
            Evidence(error_type="RuntimeError", message="DataLoader worker (pid 4711) is killed by signal: Killed. "),
            Evidence(error_type="EOFError", child="data loader worker 4711 SIGKILL"),
        ),
    ),
    Signature(
        id="worker_crashed",
        reason=Reason.USER_ERROR,
        sentence="lost a data loader worker, which crashed",
        detail="{how}",
        hint="Rerun with num_workers=0: then the rank itself crashes, and the trace shows the line that called compiled code.",
        patterns=(
            Pattern(child=_LOADER + _CRASHED),
            Pattern(text=r"DataLoader worker \(pid \d+\) is killed by signal: (?!Bus error)(?P<how>[^.\n]+)"),
            Pattern(text=_PRINTED),
            Pattern(error=_BROKEN, log=_PRINTED),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError", message="DataLoader worker (pid 99) is killed by signal: Segmentation fault."
            ),
            Evidence(error_type="ConnectionResetError", message=_RESET, child="data loader worker 99 SIGSEGV"),
            Evidence(exit_code=1, log="ERROR: Unexpected segmentation fault encountered in worker."),
        ),
    ),
    Signature(
        id="worker_ended",
        reason=Reason.USER_ERROR,
        sentence="lost a data loader worker, which ended by itself",
        hint="Rerun with num_workers=0: then the error of the worker is the rank's own.",
        patterns=(
            Pattern(text=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly"),
            Pattern(child=f"{_LOADER}exit code"),
        ),
        examples=(
            Evidence(error_type="RuntimeError", message="DataLoader worker (pid(s) 3216) exited unexpectedly"),
            Evidence(error_type="EOFError", child="data loader worker 3216 exit code 3"),
        ),
    ),
    Signature(
        id="child_killed_for_memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="lost a process that it had started, which the kernel killed because memory ran out",
        hint="Start fewer processes, load less into each, or ask for more with --memory.",
        patterns=(
            Pattern(child=f"{_CHILD}SIGKILL$", killed_for_memory=True),
            Pattern(text=f"{_SPAWNED}SIGKILL", killed_for_memory=True),
            Pattern(error=_POOL, killed_for_memory=True),
        ),
        examples=(
            Evidence(
                error_type="concurrent.futures.process.BrokenProcessPool",
                child="process 4711 SIGKILL",
                killed_for_memory=True,
            ),
            Evidence(
                error_type="subprocess.CalledProcessError",
                message="Command '['./prepare']' died with <Signals.SIGKILL: 9>.",
                killed_for_memory=True,
            ),
        ),
    ),
    Signature(
        id="child_killed",
        reason=Reason.KILLED,
        sentence="lost a process that it had started, which somebody killed",
        hint="Look at the node's memory first, then at who ends processes there: an operator, a wrapper, the script itself.",
        patterns=(Pattern(child=_CHILD + _KILLED), Pattern(text=f"{_SPAWNED}(?:SIGKILL|SIGTERM)")),
        examples=(
            Evidence(error_type="concurrent.futures.process.BrokenProcessPool", child="process 4711 SIGKILL"),
            Evidence(
                error_type="torch.multiprocessing.spawn.ProcessExitedException",
                message="process 1 terminated with signal SIGKILL",
            ),
        ),
    ),
    Signature(
        id="child_crashed",
        reason=Reason.USER_ERROR,
        sentence="lost a process that it had started, which crashed",
        detail="{how}",
        hint=f"{_LOOK}: compiled code crashed there. Where its work can be done in the rank itself, the trace shows the line.",
        patterns=(
            Pattern(child=f"{_CHILD}(?P<how>SIG\\w+)$"),
            Pattern(text=f"{_SPAWNED}(?P<how>SIG\\w+)"),
        ),
        examples=(
            Evidence(error_type="ConnectionResetError", message=_RESET, child="process 4711 SIGSEGV"),
            Evidence(
                error_type="torch.multiprocessing.spawn.ProcessExitedException",
                message="process 1 terminated with signal SIGSEGV",
            ),
        ),
    ),
    Signature(
        id="child_ended",
        reason=Reason.USER_ERROR,
        sentence="lost a process that it had started",
        detail="{how}",
        hint=f"{_LOOK}: it ended, or closed its connection, while this rank still talked to it. No other rank had part in it.",
        patterns=(
            Pattern(child=f"{_CHILD}(?P<how>exit code \\d+)$"),
            Pattern(
                error=_BROKEN, trace=r"multiprocessing[/\\](?:connection|reductions?|resource_sharer)\.py", child="^$"
            ),
            Pattern(error=_POOL),
        ),
        examples=(
            Evidence(error_type="EOFError", child="process 4711 exit code 3"),
            Evidence(
                error_type="concurrent.futures.process.BrokenProcessPool",
                message="A process in the process pool was terminated abruptly while the future was running or pending.",
            ),
            Evidence(
                error_type="ConnectionResetError",
                message=_RESET,
                trace='  File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv\n',
            ),
        ),
    ),
)
