"""`shell RUN_DIR --launch N --node I --rank R [-- COMMAND …]`: what a person starts beside a rank that runs here.

It has the folder and the environment that the rank was started with: both are made anew by the same rules, from what
the agent was started with and told, so that nothing of it has to be on a command line. Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gangline.agent.allocation import adopt_allocation, read_allocation
from gangline.agent.batchscript import render_batch_environment, script_folder
from gangline.agent.environ import AttemptTerms, render_rank_environment
from gangline.agent.inject import render_beside
from gangline.agent.launchspec import LaunchSpec, Shape, load_launch
from gangline.domain.errors import Conflict, GanglineError, InvalidRequest
from gangline.domain.role import leave_out_role
from gangline.rundir.files import read_json
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import AttemptDir, RunDir

__all__ = ["Beside", "find_beside", "run_shell"]

_USAGE = "shell RUN_DIR --launch N --node I --rank R [-- COMMAND …]"
_SHELL = ("bash", "--noprofile", "--norc", "-i")
"""Start-up files would change what the rank's set-up has made: another environment's programs come first then."""
_OF_THE_TERMINAL = ("TERM", "COLORTERM")
_NOT_FOUND, _NOT_RUN = 127, 126


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Where a program beside a rank starts, and with what."""

    run_name: str
    rank: int
    folder: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    run: RunDir
    launch: int
    node: int
    rank: int
    command: tuple[str, ...]


def run_shell(arguments: Sequence[str]) -> int:
    """Become the shell, or the command; returns only where that cannot be."""
    try:
        asked = _parse(arguments)
        beside = find_beside(asked.run, launch=asked.launch, node=asked.node, rank=asked.rank)
        os.chdir(beside.folder)
    except (GanglineError, OSError) as error:
        _say(f"gangline: {error}")
        return error.exit_code if isinstance(error, GanglineError) else 1
    env = {**beside.env, **{name: os.environ[name] for name in _OF_THE_TERMINAL if name in os.environ}}
    if not asked.command:
        env["PS1"] = f"{beside.run_name} rank {beside.rank} \\h:\\W\\$ "
        _say(f"Beside rank {beside.rank} of {beside.run_name} in {beside.folder}; Ctrl-D leaves, the run goes on.")
    return _become(asked.command or _SHELL, env)


def find_beside(run: RunDir, *, launch: int, node: int, rank: int) -> Beside:
    """Folder and environment of a rank of this machine.

    Raises:
        Conflict: the rank does not run (any more), or not here.
    """
    spec = load_launch(run, launch)
    attempt = next(
        (one for one in reversed(run.attempts()) if (read_json(one.gang) or {}).get("launch") == launch), None
    )
    if attempt is None:
        raise Conflict(f"No rank of `{spec.run_id}` has started yet", fix="Try again in a moment.")
    _expect_running(spec, attempt, node, rank)
    base, cpus = _look_at_agent(run, spec, node)
    spec = adopt_allocation(spec, node, read_allocation(base))
    workdir = Path(os.path.normpath(run.code / spec.workdir))
    terms, run_dir = _terms(spec, attempt), str(run.path)
    if spec.batch is not None:
        env = render_batch_environment(spec, terms, base=base, run_dir=run_dir, workdir=workdir)
        folder = script_folder(spec.batch, workdir)
    else:
        env = render_rank_environment(spec, terms, rank, base=base, run_dir=run_dir, node_cpus=cpus)
        folder = workdir
    # With GANGLINE_SHELL, `gangline.log` writes nothing among the run's own numbers.
    env, injected = {**leave_out_role(env), "GANGLINE_SHELL": "1"}, run.launch(launch).path / "injected"
    if injected.is_dir():
        env = render_beside(env, folder=injected)
    return Beside(run_name=spec.run_name, rank=rank, folder=folder, env=env)


def _parse(arguments: Sequence[str]) -> _Asked:
    """Raises: InvalidRequest."""
    match list(arguments):
        case [run_dir, "--launch", launch, "--node", node, "--rank", rank, *rest] if (
            launch.isdigit() and node.isdigit() and rank.isdigit() and rest[:1] in ([], ["--"])
        ):
            run = RunDir(Path(run_dir).absolute())
            return _Asked(run=run, launch=int(launch), node=int(node), rank=int(rank), command=tuple(rest[1:]))
    raise InvalidRequest(f"`{' '.join(arguments)}` is not a call of the shell", fix=f"Call: {_USAGE}")


def _expect_running(spec: LaunchSpec, attempt: AttemptDir, node: int, rank: int) -> None:
    """Raises: Conflict, in one sentence, where the rank is not in its program."""
    name, pid, end = f"Rank {rank} of `{spec.run_id}`", None, None
    for event in read_journal(attempt.events(node)):
        if event.get("rank") == rank and event["kind"] == "rank_started":
            pid = event["pid"]
        elif event.get("rank") == rank and event["kind"] == "rank_exited":
            end = event
    if end is not None:
        how = f"exit code {end['exit_code']}" if end.get("exit_code") is not None else f"signal {end.get('signal')}"
        raise Conflict(f"{name} does not run any more: it ended with {how}")
    if pid is None:
        raise Conflict(f"{name} has not started yet", fix="Try again in a moment.")
    if not Path(f"/proc/{pid}").exists():
        raise Conflict(f"{name} does not run any more", why=f"{os.uname().nodename} has no process {pid}")


def _look_at_agent(run: RunDir, spec: LaunchSpec, node: int) -> tuple[dict[str, str], int]:
    """What the agent of this node was started with, after every set-up line, and how many CPUs it may use.

    Raises:
        Conflict: it does not live here.
    """
    try:
        pid = int(run.launch(spec.launch).lock(node).read_text())
        is_agent = os.fsencode(str(run.path)) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except (OSError, ValueError):
        is_agent, raw, pid = False, b"", 0
    if not is_agent:
        why = f"Its agent is not on {os.uname().nodename}"
        raise Conflict(f"Node {node} of `{spec.run_id}` does not run here any more", why=why)
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if item)
    cpus = len(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {name: value for name, _, value in pairs}, cpus


def _terms(spec: LaunchSpec, attempt: AttemptDir) -> AttemptTerms:
    gang = read_json(attempt.gang) or {}
    members = gang.get("members", [])
    return AttemptTerms(
        attempt=attempt.number,
        shape=Shape(tuple(member["node"] for member in members), spec.procs_per_node),
        master_addr=gang.get("master_addr", ""),
        master_port=gang.get("master_port", 0),
        addresses=[member["address"] for member in members],
    )


def _become(words: Sequence[str], env: Mapping[str, str]) -> int:
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0], list(words), dict(env))  # noqa: S606 - what this is for
    except FileNotFoundError:
        _say(f"gangline: there is no program `{words[0]}`")
        return _NOT_FOUND
    except OSError as error:
        _say(f"gangline: `{words[0]}` cannot be started: {error.strerror}")
        return _NOT_RUN


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"{text}\n".encode("utf-8", "replace"))
