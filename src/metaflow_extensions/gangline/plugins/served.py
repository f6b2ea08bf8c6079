"""A gang that a server looks after: submitted, followed, and kept by a lease. Speaks to `gangline.client` alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangline.client import Client, GanglineError, RunDetail, connect, keep_lease
from gangline.client.submission import prepare, send

from .compat import GangError, attributes_of, log_store
from .earlier import find_earlier
from .elsewhere import in_container
from .lines import ContainerLog, TaskLog
from .outcome import ENDED, describe_end, run_metadata
from .reach import is_far
from .request import LABEL, going_on, lease_of, make_spec, working_folder
from .task import TOLD, GangTask, ToldToEndError
from .work import name_work

__all__ = ["ServedGang", "find_served_failure"]

_DASHBOARD = "dashboard"
"""Kind of the event that says where one is, such as that of a Ray cluster."""
_SHOWN = frozenset({"phase", "warning", "error", "restart", "revised", _DASHBOARD})


def find_served_failure(task: GangTask) -> Exception | None:
    """Why the newest gang of a task has failed."""
    try:
        with connect() as client:
            found = client.list_runs(labels=[f"{LABEL}.task={task.pathspec}"], limit=1)
            return GangError(describe_end(client.run(found[0]["id"]), task.step)) if found else None
    except GanglineError:
        return None


class ServedGang:
    """The run that a task becomes; it ends when this process is told to end, and by its lease when that is killed.

    Args:
        origins: the flow's run that is being resumed, and those which that one resumes.
        inputs: digest of what goes into the task; None: nobody knows.
        note: registers metadata of the task.
        is_wanted: asked about once a second.
        take_over: has the task have the results of another one.
    """

    def __init__(
        self,
        flow: Any,
        flow_datastore: Any,
        task: GangTask,
        *,
        origins: Sequence[str],
        inputs: str | None,
        note: Callable[..., None],
        is_wanted: Callable[[], bool],
        take_over: Callable[[str], None],
    ) -> None:
        self._step = getattr(flow, task.step)
        self._store = flow_datastore
        self._task = task
        self._origins = origins
        self._inputs = inputs
        self._take_over = take_over
        self._is_taken = False
        self._note = note
        self._is_wanted = is_wanted
        self._lease_s = lease_of(self._step)
        options = attributes_of(self._step, "gang")
        self._starts_itself = bool(
            {"checkpoint_path", "path", "start_from", "from_checkpoint"} & options.keys()
            or options.get("resume") == "never"
        )

    def run(self) -> None:
        with connect() as client:
            run = self._find_or_submit(client)
            try:
                with closing(self._open_log(run)) as log:
                    self._begin(client, run, log)
                    lease = keep_lease(run["id"], run["lease_s"] or self._lease_s, is_wanted=self._is_wanted_or_ends)
                    with self._card(run["id"]), lease:
                        ended = self._see_through(client, run["id"], log)
            except (ToldToEndError, BrokenPipeError):
                _stop(run["id"])
                raise ToldToEndError from None
            self._note(fields=run_metadata(ended))
        if ended["phase"] != "succeeded":
            raise GangError(describe_end(ended, self._task.step))
        if self._is_taken:
            self._take_over(ended["labels"][f"{LABEL}.task"])

    def _find_or_submit(self, client: Client) -> RunDetail:
        """The run that this task has left behind, if that does the very same, or else a new one."""
        argv = sys.argv
        far = is_far(self._task, self._store)
        spec = make_spec(self._step, self._task, argv=argv, far=far)
        prepared = prepare(spec, cwd=working_folder(Path(argv[0]).absolute()))
        work = name_work(prepared.spec, self._inputs)
        earlier = find_earlier(
            client, self._task, origins=self._origins, work=work, wants_checkpoint=not self._starts_itself
        )
        for warning in (*earlier.words, *prepared.warnings):
            sys.stderr.write(f"{warning}\n")
        if earlier.taken is not None:
            self._is_taken = True
            return client.run(earlier.taken)
        task = self._task = replace(self._task, begun=earlier.begun)
        spec = going_on(prepared.spec, task, start_from=earlier.start_from, work=work)
        key = task.key(str(self._store.datastore_root))
        return send(replace(prepared, spec=spec), client=client, command=argv, key=key, lease_s=self._lease_s)

    def _begin(self, client: Client, run: RunDetail, log: ContainerLog | TaskLog) -> None:
        """The same task may have been here before, and its run may go on, or be over."""
        if self._is_taken:
            with suppress(GanglineError):  # it may be over by now
                client.renew(run["id"])
        elif run["phase"] in ENDED - {"succeeded"}:
            client.resume(run["id"], lease_s=self._lease_s)
        log.say(f"run {run['id']} on pool {run['pool']}")
        self._note(fields=run_metadata(run))

    def _see_through(self, client: Client, run_id: str, log: ContainerLog | TaskLog) -> RunDetail:
        after = -1
        while True:
            after = self._follow(client, run_id, log, after)
            ended = client.run(run_id)
            if ended["reason"] != "lease_ended":
                return ended
            log.say("The lease had ended while this machine was away; the run goes on from its checkpoint.")
            client.resume(run_id, lease_s=self._lease_s)

    def _follow(self, client: Client, run_id: str, log: ContainerLog | TaskLog, after: int) -> int:
        attempt = 0 if self._is_taken and after < 0 else None
        for item in client.follow(run_id, attempt=attempt, after=after):
            if "text" in item:
                log.take(item["rank"], item["text"])
            elif "event" in item:
                after = item["event"]["seq"]
                self._tell(item["event"], log)
            elif "waits" in item:
                log.say(str(item["waits"]))
        return after

    def _tell(self, event: Mapping[str, Any], log: ContainerLog | TaskLog) -> None:
        if event["kind"] in _SHOWN:
            log.say(event["message"])
        if event["kind"] == _DASHBOARD:
            self._note(fields={"gangline-dashboard": event["message"]})

    def _is_wanted_or_ends(self) -> bool:
        if not self._is_wanted():
            os.kill(os.getpid(), signal.SIGTERM)
            return False
        return True

    def _open_log(self, run: RunDetail) -> ContainerLog | TaskLog:
        if in_container():
            return ContainerLog()
        return TaskLog(self._log_store(), where=f"gangline logs {run['id']} --all-ranks")

    def _card(self, run_id: str) -> AbstractContextManager[None]:
        if not attributes_of(self._step, "gang").get("card", True):
            return nullcontext()
        from .card import live_card  # noqa: PLC0415 - not where it is not wanted

        return live_card(self._store, self._task, run_id)

    def _log_store(self) -> Callable[[Path], None]:
        task = self._task
        save = log_store(self._store, run=task.run, step=task.step, task=task.task, attempt=task.retry)
        return lambda path: save(path, b"")


def _stop(run_id: str) -> None:
    """Ask the run to end. Where that fails, its lease does it."""
    for number in TOLD:
        signal.signal(number, signal.SIG_IGN)
    try:
        with connect() as client:
            client.stop(run_id)
    except GanglineError as error:
        sys.stderr.write(f"Run {run_id} could not be asked to stop; its lease ends it: {error}\n")
