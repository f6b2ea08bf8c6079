"""What Metaflow's runtime starts in place of a step with @gang: it submits the run, passes logs on, and waits.

The run has a lease, which this process keeps. It ends the run when it is told to end, and when the runtime above it is
gone; when it is killed itself, the lease ends the run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from metaflow import current

from gangline.client import Client, GanglineError, RunDetail, connect, keep_lease
from gangline.client.submission import prepare, send

from .compat import GangError, attributes_of, log_store, register
from .earlier import find_earlier
from .lines import TaskLog
from .outcome import ENDED, describe_end, run_metadata
from .request import LABEL, lease_of, make_spec, working_folder
from .task import GangTask

__all__ = ["find_failure", "run_gang"]

_TOLD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN = frozenset({"phase", "warning", "error", "restart", "revised"})


class _ToldToEndError(BaseException):
    """A signal, or the end of the runtime."""


def run_gang(obj: Any, params: dict[str, Any]) -> None:
    """Run one task as a gang; returns when it has succeeded.

    Args:
        obj: Metaflow's state of this process.
        params: of the command `step`.
    Raises:
        GangError: it did not succeed.
    """
    runtime = os.getppid()
    for number in _TOLD:
        signal.signal(number, _on_signal)
    try:
        _Trampoline(obj, params, is_wanted=lambda: _is_child_of(runtime)).run()
    except GanglineError as error:
        raise GangError(str(error)) from None
    except _ToldToEndError:
        raise GangError("The flow was told to end; so was the gang, which saves a checkpoint first.") from None


def find_failure(step: str) -> Exception | None:
    """Why the gang of the task of this process has failed, for @catch."""
    try:
        with connect() as client:
            pathspec = f"{current.flow_name}/{current.run_id}/{step}/{current.task_id}"
            found = client.list_runs(labels=[f"{LABEL}.task={pathspec}"], limit=1)
            return GangError(describe_end(client.run(found[0]["id"]), step)) if found else None
    except GanglineError:
        return None


class _Trampoline:
    def __init__(self, obj: Any, params: dict[str, Any], *, is_wanted: Callable[[], bool]) -> None:
        self._obj = obj
        self._step = getattr(obj.flow, params["step_name"])
        self._clone: str | None = params.get("clone_run_id")
        self._is_wanted = is_wanted
        self._lease_s = lease_of(self._step)
        options = attributes_of(self._step, "gang")
        self._task = GangTask(
            flow=obj.flow.name,
            run=str(params["run_id"]),
            step=params["step_name"],
            task=str(params["task_id"]),
            retry=int(params["retry_count"] or 0),
            pool=str(options.get("pool") or "local"),
            split=params.get("split_index"),
            tags=tuple(params.get("opt_tag") or ()),
        )
        self._starts_itself = bool(
            {"checkpoint_path", "path", "start_from", "from_checkpoint"} & options.keys()
            or options.get("resume") == "never"
        )

    def run(self) -> None:
        with connect() as client:
            run = self._submit(client)
            log = TaskLog(self._log_store(), where=f"gangline logs {run['id']} --all-ranks")
            try:
                self._begin(client, run, log)
                with keep_lease(run["id"], self._lease_s, is_wanted=self._is_wanted_or_ends):
                    ended = self._see_through(client, run["id"], log)
            except (_ToldToEndError, BrokenPipeError):
                _stop(run["id"])
                raise _ToldToEndError from None
            finally:
                log.close()
            self._note(run_metadata(ended))
        if ended["phase"] != "succeeded":
            raise GangError(describe_end(ended, self._task.step))

    def _submit(self, client: Client) -> RunDetail:
        earlier = find_earlier(client, self._task, clone=self._clone, wants_checkpoint=not self._starts_itself)
        self._task = earlier.begin(self._task)
        argv = sys.argv
        spec = make_spec(self._step, self._task, argv=argv, start_from=earlier.start_from)
        prepared = prepare(spec, cwd=working_folder(Path(argv[0]).absolute()))
        for warning in (*earlier.words, *prepared.warnings):
            sys.stderr.write(f"{warning}\n")
        key = self._task.key(str(self._obj.flow_datastore.datastore_root))
        return send(prepared, client=client, command=argv, key=key, lease_s=self._lease_s)

    def _begin(self, client: Client, run: RunDetail, log: TaskLog) -> None:
        """The same task may have been here before, and its run may go on, or be over."""
        if run["phase"] in ENDED - {"succeeded"}:
            client.resume(run["id"], lease_s=self._lease_s)
        log.say(f"run {run['id']} on pool {run['pool']}")
        self._note(run_metadata(run))

    def _see_through(self, client: Client, run_id: str, log: TaskLog) -> RunDetail:
        after = -1
        while True:
            after = self._follow(client, run_id, log, after)
            ended = client.run(run_id)
            if ended["reason"] != "lease_ended":
                return ended
            log.say("The lease had ended while this machine was away; the run goes on from its checkpoint.")
            client.resume(run_id, lease_s=self._lease_s)

    def _follow(self, client: Client, run_id: str, log: TaskLog, after: int) -> int:
        for item in client.follow(run_id, after=after):
            if "text" in item:
                log.take(item["rank"], item["text"])
            elif "event" in item:
                after = item["event"]["seq"]
                if item["event"]["kind"] in _SHOWN:
                    log.say(item["event"]["message"])
            elif "waits" in item:
                log.say(str(item["waits"]))
        return after

    def _is_wanted_or_ends(self) -> bool:
        if not self._is_wanted():
            os.kill(os.getpid(), signal.SIGTERM)
            return False
        return True

    def _log_store(self) -> Callable[[Path], None]:
        task = self._task
        save = log_store(self._obj.flow_datastore, run=task.run, step=task.step, task=task.task, attempt=task.retry)
        return lambda path: save(path, b"")

    def _note(self, fields: dict[str, str]) -> None:
        task = self._task
        register(self._obj.metadata, run=task.run, step=task.step, task=task.task, attempt=task.retry, fields=fields)


def _stop(run_id: str) -> None:
    """Ask the run to end. Where that fails, its lease does it."""
    for number in _TOLD:
        signal.signal(number, signal.SIG_IGN)
    try:
        with connect() as client:
            client.stop(run_id)
    except GanglineError as error:
        sys.stderr.write(f"Run {run_id} could not be asked to stop; its lease ends it: {error}\n")


def _is_child_of(pid: int) -> bool:
    return os.getppid() == pid


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _ToldToEndError
