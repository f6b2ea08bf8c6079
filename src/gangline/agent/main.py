"""Command line of the agent: `agent RUN_DIR --launch N --node I`. Standard library only.

Exit codes: 0 the launch came to its end (or another agent of the same node is at it already), 3 the gang was never joined,
4 the leader was lost, 64 the call cannot be, 70 a fault of the agent itself.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.agent.addresses import LOOPBACK
from gangline.agent.execstart import ExecStarter
from gangline.agent.follower import Follower
from gangline.agent.guardian import Guardian, marks_of, sweep_earlier
from gangline.agent.hostinfo import EnvironmentProbe
from gangline.agent.inject import write_injected
from gangline.agent.launchspec import LaunchSpec, load_launch
from gangline.agent.leader import Leader
from gangline.agent.loop import Loop
from gangline.agent.node import Node
from gangline.agent.processes import adopt_orphans
from gangline.agent.sampler import SystemJournal
from gangline.agent.site import Journal, Site
from gangline.agent.starter import Starter
from gangline.domain.errors import GanglineError, InvalidRequest
from gangline.rundir.layout import RunDir

__all__ = ["main"]

_USAGE = "agent RUN_DIR --launch N --node I"
_INDEX_S = 0.2
_SAMPLE_S = 2.0
_ASK_AFTER_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command of the zipapp; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["agent"]:
            return run_agent(*_parse(arguments[1:]))
        raise InvalidRequest(f"`{' '.join(arguments)}` is not a call of the agent", fix=f"Call: {_USAGE}")
    except GanglineError as error:
        sys.stderr.write(f"gangline agent: {error}\n")
        return error.exit_code


def run_agent(run_dir: Path, launch: int, node: int) -> int:
    """Be the agent of one node until the launch is over."""
    run = RunDir(run_dir)
    lock = _take_lock(run.launch(launch).lock(node))
    if lock is None:
        return 0
    spec = load_launch(run, launch)
    if node >= spec.nodes:
        raise InvalidRequest(f"Node {node} is not in a gang of {spec.nodes}", fix="Count nodes from 0")
    adopt_orphans()
    marks = marks_of(str(run.path), launch=launch, node=node)
    sweep_earlier(marks)
    guardian = Guardian(marks)
    starter = _open_starter(run, spec)
    exit_code = Agent(run, spec, node, starter, spared=guardian.pid).serve(os.environ)
    starter.close()
    guardian.dismiss()
    os.close(lock)
    return exit_code


class Agent:
    """Puts the parts of one agent together."""

    def __init__(self, run: RunDir, launch: LaunchSpec, index: int, starter: Starter, *, spared: int) -> None:
        self._run = run
        self._launch = launch
        self._index = index
        self._starter = starter
        self._spared = spared
        self._loop = Loop()
        self._probes: list[EnvironmentProbe] = []

    def serve(self, environ: Mapping[str, str]) -> int:
        """Serve until the launch is over; the exit code."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        advertised = environ.get("GANGLINE_ADDRESS") or None
        actor = self._lead(advertised) if self._index == 0 else self._follow(advertised)
        try:
            return self._loop.run()
        finally:
            for probe in self._probes:
                probe.finish()
            actor.close()

    def _lead(self, advertised: str | None) -> Leader:
        site = self._site(advertised or LOOPBACK)
        leader = Leader(site, self._loop, advertised=advertised)
        # Reports wait for the loop's next turn, so that the node is never asked something in the middle of its own work.
        node = self._node(site, report=self._later(lambda said: leader.hear(0, said)))
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, lambda: leader.hear(0, {"say": "signalled"}))
        leader.begin(node)
        return leader

    def _follow(self, advertised: str | None) -> Follower:
        follower = Follower(self._site(""), self._loop, advertised=advertised)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, follower.on_signal)
        follower.begin(lambda address: self._node(self._site(address), report=follower.report))
        return follower

    def _later(self, call: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        def report(said: dict[str, Any]) -> None:
            self._loop.after(0.0, lambda: call(said))

        return report

    def _site(self, address: str) -> Site:
        host = os.uname().nodename
        return Site(launch=self._launch, run=self._run, index=self._index, host=host, address=address)

    def _node(self, site: Site, report: Callable[[dict[str, Any]], None]) -> Node:
        """The node's ranks, and everything that watches them beside."""
        journal = Journal(self._run, self._index)
        node = Node(site, loop=self._loop, starter=self._starter, journal=journal, report=report)
        node.helpers.add(self._spared)
        system = SystemJournal(self._index)
        probe = EnvironmentProbe(site, self._loop, helpers=node.helpers)
        self._probes.append(probe)
        node.on_started = lambda attempt: self._after_start(probe, attempt)
        self._loop.every(_INDEX_S, node.note_logs)
        self._loop.every(_SAMPLE_S, lambda: system.sample(node.folder, node.live_ranks))
        return node

    def _after_start(self, probe: EnvironmentProbe, attempt: int) -> None:
        """Ask about the environment once the ranks are past their own start."""
        probe.expect(attempt)
        self._loop.after(_ASK_AFTER_S, probe.ask)


def _open_starter(run: RunDir, launch: LaunchSpec) -> Starter:
    injected = run.launch(launch.launch).path / "injected"
    write_injected(injected)
    return ExecStarter(injected=injected)


def _parse(arguments: Sequence[str]) -> tuple[Path, int, int]:
    """By hand: argparse would cost a tenth of the agent's start.

    Raises:
        InvalidRequest: something is missing, unknown or no number.
    """
    match arguments:
        case [run_dir, "--launch", launch, "--node", node] if launch.isdigit() and node.isdigit():
            return Path(run_dir).absolute(), int(launch), int(node)
    raise InvalidRequest(f"`{' '.join(arguments)}` is not a call of the agent", fix=f"Call: {_USAGE}")


def _take_lock(path: Path) -> int | None:
    """Hold the lock of this node and write the pid into it; None: another agent holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
