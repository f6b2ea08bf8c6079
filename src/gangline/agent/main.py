"""Command line of the agent: `agent RUN_DIR --launch N --node I`; `shell` (`rankshell.py`). Standard library only.

Exit codes: 0 the launch came to its end (or another agent of the same node is at it already), 3 the gang was never
joined, 4 the leader was lost, 5 the run directory cannot be written, 64 the call cannot be, 68 nobody needs the
launch that it was to await, 1 a fault of the agent itself.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gangline.agent.addresses import LOOPBACK, is_loopback
from gangline.agent.allocation import adopt_allocation, find_program, read_allocation
from gangline.agent.choose import ReasonedStarter, StarterPlan, open_starter
from gangline.agent.commandline import write_notebook_script
from gangline.agent.environ import AttemptTerms
from gangline.agent.execstart import ExecStarter
from gangline.agent.guardian import fork_agent, marks_of, sweep_earlier
from gangline.agent.launchspec import LaunchSpec, load_launch
from gangline.agent.site import EXIT_STORAGE, EXIT_UNNEEDED, Site, complain
from gangline.agent.strategies import WITH_COMPANY, rules_of
from gangline.domain.errors import GanglineError, InvalidRequest
from gangline.domain.spec import EntryKind
from gangline.rundir.layout import RunDir
from gangline.rundir.space import STORAGE_WORDS, describe_full, is_full

__all__ = ["main"]

_USAGE = "agent RUN_DIR --launch N --node I"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command of the zipapp; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["agent"]:
            return run_agent(*_parse(arguments[1:]))
        if arguments[:1] == ["shell"]:
            from gangline.agent.rankshell import run_shell  # noqa: PLC0415 - no agent needs it

            return run_shell(arguments[1:])
        raise InvalidRequest(f"`{' '.join(arguments)}` is not a call of the agent", fix=f"Call: {_USAGE}")
    except GanglineError as error:
        complain(str(error))
        return error.exit_code
    except OSError as error:
        if not is_full(error):
            raise
        complain(f"{STORAGE_WORDS}: {describe_full(error.filename or arguments[1], error)}")
        return EXIT_STORAGE  # the guardian ends what was started


def run_agent(run_dir: Path, launch: int, node: int) -> int:
    """Be the agent of one node until the launch is over."""
    run = RunDir(run_dir)
    if not _is_wanted(run, launch):
        return EXIT_UNNEEDED
    lock = _take_lock(run.launch(launch).lock(node))
    if lock is None:
        return 0
    spec = load_launch(run, launch)
    if node >= spec.nodes:
        raise InvalidRequest(f"Node {node} is not in a gang of {spec.nodes}", fix="Count nodes from 0")
    if _is_over(run, spec):
        return 0
    sweep_earlier(marks_of(str(run.path), launch=launch, node=node))
    guardian = fork_agent(lock=lock, scratch=_find_scratch(run, spec))
    _sign(lock)
    # Addresses are given where all agents are on one machine; they then share its CPUs, too.
    advertised = os.environ.get("GANGLINE_ADDRESS") or None
    agents_here = spec.nodes if advertised is not None and is_loopback(advertised) else 1
    given = read_allocation(os.environ)
    spec = replace(spec, python=find_program(spec.python, os.environ))
    if spec.batch is None:  # a script's devices are its own business
        spec = adopt_allocation(spec, node, given)
    site = Site(
        launch=spec,
        run=run,
        index=node,
        host=given.host or os.uname().nodename,
        address=advertised or "",
        agents_here=agents_here,
        allocation=given,
    )
    _prepare_tree(site)
    starter = _open_starter(site)
    # The helper imports by now. What serves the gang is imported beside it, not before it.
    from gangline.agent.serve import Agent  # noqa: PLC0415 - see the line above

    exit_code = Agent(site, starter, guardian=guardian).serve(advertised)
    starter.close()
    return exit_code


def _is_wanted(run: RunDir, launch: int) -> bool:
    """Whether there is anything to start; a job that waited for the end of another one may not know yet."""
    patience_s = os.environ.get("GANGLINE_AWAIT_S")
    if patience_s is None:
        return True
    from gangline.agent.awaiting import await_launch  # noqa: PLC0415 - few launches wait for another

    why = await_launch(run, launch, float(patience_s))
    if why:
        complain(why)
    return not why


def _find_scratch(run: RunDir, spec: LaunchSpec) -> Path | None:
    if spec.strategy not in WITH_COMPANY:
        return None
    from gangline.agent.strategies.company import scratch_path  # noqa: PLC0415 - few runs have any

    return scratch_path(run, spec.launch)


def _prepare_tree(site: Site) -> None:
    """The tree is there before a starter looks at it: restored by the first agent, waited for by the others."""
    if site.run.code.exists():
        return
    from gangline.agent.restoring import await_tree, restore_tree  # noqa: PLC0415 - mostly the server has made it

    if site.index == 0:
        fault = restore_tree(site.run, None if site.launch.objects is None else Path(site.launch.objects))
        if fault:
            complain(fault)
    elif not await_tree(site.run, patience_s=site.launch.stop.start_timeout_s):
        complain(f"{site.run.code} was not made in time")


def _is_over(run: RunDir, spec: LaunchSpec) -> bool:
    """Whether the launch has come to its end already: a server that was killed before it noted that starts it again."""
    begun = [attempt for attempt in run.attempts() if attempt.number >= spec.first_attempt]
    if not begun:
        return False
    from gangline.rundir.files import Unreadable, read_json  # noqa: PLC0415 - a first start needs none of it

    try:
        result = read_json(begun[-1].result) or {}
    except (OSError, Unreadable):
        return False
    return result.get("launch") == spec.launch and result.get("next") in {"end", "relaunch"}


def _open_starter(site: Site) -> ReasonedStarter:
    """The starter of this node; a warm one begins to import now, while the gang still assembles."""
    launch = site.launch
    kind, entry = launch.entry_kind, launch.entry
    if kind is EntryKind.NOTEBOOK:
        with suppress(OSError, ValueError):  # what is wrong with it is said when the attempt is prepared
            kind, entry = EntryKind.SCRIPT, write_notebook_script(site.workdir, entry)
    shape = launch.shape()
    terms = AttemptTerms(attempt=launch.first_attempt, shape=shape, master_addr=LOOPBACK, master_port=0)
    plan = StarterPlan(
        # A rank that serves the others is another program, and has nothing to fork from.
        start="exec" if rules_of(launch.strategy).supports(shape.ranks_of(site.index)[0]) else launch.start.value,
        entry_kind=kind.value,
        entry=entry,
        args=launch.args,
        python=launch.python,
        cwd=str(site.workdir),
        preload=launch.preload,
        env=site.environment_of(shape.ranks_of(site.index)[0], terms),
        folder=site.run.launch(launch.launch).path,
    )
    return open_starter(plan, exec_starter=ExecStarter)


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
    """Hold the lock of this node; None: another agent holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _sign(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
