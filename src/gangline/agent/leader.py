"""The agent of node 0: it owns the gang. It numbers attempts, starts and ends them, decides what follows.

One attempt goes through: gather (all agents join) → prepare (each node says that it can start) → start → run → the
end (no process is left on any node) → result. `_advance` takes the next step whenever something was learnt.
Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangline.agent.addresses import UNREACHED
from gangline.agent.attempt import Attempt, Ending, Hang, RankRecord
from gangline.agent.control import ControlFile, StacksRequest, StopRequest, parse_request
from gangline.agent.foothold import Foothold
from gangline.agent.gangfile import name_ranks, next_attempt, render_cluster, render_gang
from gangline.agent.life import BEAT_S, LifeSign
from gangline.agent.loop import Loop, Timer
from gangline.agent.members import Member, Members
from gangline.agent.memory import Memory
from gangline.agent.node import Node
from gangline.agent.pacing import StragglerWatch
from gangline.agent.preflight import Preflight, describe_faults
from gangline.agent.rendezvous import ReservedPort, reserve_port
from gangline.agent.repeats import Repeats
from gangline.agent.result import (
    Outcome,
    Standing,
    decide_lost_folder,
    decide_outcome,
    explain_failure,
    render_first_failure,
    render_result,
)
from gangline.agent.site import EXIT_STORAGE, Site, complain, machine_id
from gangline.agent.source import Looked, SourceTree
from gangline.agent.storage import Resume, find_missing_outputs, resolve_resume
from gangline.agent.watch.watchdog import Watchdog
from gangline.domain.errors import Transient
from gangline.domain.phase import Reason
from gangline.domain.spec import NoticeSignal, OnTimeLimit
from gangline.rundir.files import write_json
from gangline.rundir.journal import read_journal
from gangline.rundir.space import STORAGE_WORDS, describe_full, is_full

__all__ = ["Leader"]

_CONTROL_S = 0.05
_LOOK_S = 1.0
_WRITE_AGAIN_S = 1.0
_UNREACHED_S = 20.0
"""How long an agent may try in vain to reach its leader; at most a quarter of the time to start."""
_MOST_WRITES = 60
_MOST_WRITES_FULL = 10
_FULL_PAUSE_S = 0.5
_CHARGED_S_PER_NODE = 0.5
_HANG_GRACE_S = 1.0  # ranks that hang have nothing to save, and mostly hear nothing
_BLAME_PAUSE_S = 0.15
"""How long a rank that only lost a peer is not told of, in case that the one that is to blame is seen a bit later."""
_REPORT_KEYS = (
    *("pid", "started", "exit_code", "signal", "ended_by", "peak_rss_bytes", "error", "log_tail"),
    *("step", "total", "phase"),
)


class Leader:
    """Runs the attempts of one launch, one after the other."""

    def __init__(self, site: Site, loop: Loop, *, advertised: str | None) -> None:
        self._site = site
        self._launch = site.launch
        self._loop = loop
        self._advertised = advertised
        self._members = Members(
            site.launch, loop, on_joined=self._advance, on_message=self.hear, on_lost=self._on_agent_lost
        )
        self._control = ControlFile(site.run.control, site.launch.control_offset)
        self._used = dict(site.launch.restarts_used)
        self._free_retries = 0
        self._repeats = Repeats()
        self._number = next_attempt(site)
        self._attempt: Attempt | None = None
        self._step = ""
        self._stragglers = StragglerWatch(site.launch.watch, self._write_event)
        self._preflight = Preflight(site.launch, warn=self._warn)
        self._port: ReservedPort | None = None
        self._meeting_port = 0
        self._timers: list[Timer] = []
        self._unreached: dict[tuple[int, int], float] = {}
        """When it was first seen, by attempt and node, that a node does not reach this one."""
        self._pause: Timer | None = None
        self._node: Node | None = None
        self._full = ""
        """What cannot be written in the attempt that runs; "": everything can."""
        self._foothold = Foothold()
        self._foothold.hold(site.run.path)
        self._source = _open_source(site, fresh=self._number == 0)
        self._life = LifeSign(site.run.launch(site.launch.launch).alive)
        self._watchdog = Watchdog(site, loop, send=self._members.send, write=self._write_event, on_hang=self._on_hang)

    def begin(self, node: Node) -> None:
        """Let followers join, and start the first attempt when its pause is over."""
        site, machine = self._site, machine_id()
        self._node = node
        self._members.add_self(
            Member(node=0, host=site.host, address=site.address, pid=os.getpid(), machine=machine, send=node.handle)
        )
        if self._launch.nodes > 1:
            self._members.listen(site.run.launch(self._launch.launch), machine=machine, advertised=self._advertised)
            self._loop.every(_LOOK_S, self._look_for_unreached)
        self._life.begin()
        self._loop.every(BEAT_S, self._life.beat)
        self._loop.every(_CONTROL_S, self._read_control)
        self._pause = self._loop.after(self._launch.delay_s, self._begin_attempt)

    # What is heard

    def hear(self, node: int, message: dict[str, Any]) -> None:
        """A report of a node."""
        if message["say"] == "signalled":
            by = f"{message['signal']} to the agent of node {node}, sent from outside"
            self.request_stop(StopRequest(cause="preemption", by=by))
            return
        attempt = self._attempt
        if attempt is None or message.get("attempt") != attempt.number:
            return
        take: dict[str, Callable[[Attempt, int, dict[str, Any]], None]] = {
            "ready": self._take_ready,
            "started": self._take_started,
            "exited": self._take_exited,
            "cleared": self._take_cleared,
            "full": self._take_full,
            "pace": lambda _, node, said: self._stragglers.take(said, self._members.by_node[node]),
            "checked": lambda _, node, said: self._preflight.take(node, said["results"]),
            "activity": lambda _, node, said: self._watchdog.take_activity(node, said),
            "stacks": lambda _, node, said: self._watchdog.take_stacks(node, said),
        }
        take[message["say"]](attempt, node, message)
        self._advance()

    def request_stop(self, request: StopRequest) -> None:
        """Somebody wants the run to end: ranks get a notice, grace, and then the attempt is over."""
        if self._step == "over":
            return
        if self._attempt is None:
            self._open_attempt()
        by = f" by {request.by}" if request.by else ""
        told = {
            "stop": f"Stopped{by}.",
            "preemption": f"Preempted{by}.",
            "time_limit": f"The time limit was reached{by}.",
        }
        reason = Reason.PREEMPTED if request.cause == "preemption" else None
        ending = Ending(cause=request.cause, time=time.time(), reason=reason, message=told[request.cause])
        ending = replace(ending, from_outside=request.cause == "time_limit")
        grace_s = self._launch.stop.grace_s if request.grace_s is None else request.grace_s
        self._end(ending, grace_s=grace_s)

    def _read_control(self) -> None:
        for raw in self._control.read():
            request = parse_request(raw)
            if isinstance(request, StopRequest):
                self.request_stop(request)
            elif isinstance(request, StacksRequest):
                self._watchdog.ask(request, newest=max(0, self._number - 1))
            else:
                self._warn(request)

    def _take_ready(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        attempt.ready[node] = message["ports"]
        attempt.seen[node] = message["environment"]
        refused = message["refused"]
        if refused:
            text = f"Node {node} ({self._members.by_node[node].host}): {refused['text']}."
            self._fail(Reason(refused["reason"]), text)

    def _take_started(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        attempt.started_nodes.add(node)
        attempt.start_mode = message["mode"]
        for one in message["ranks"]:
            record = self._record(attempt, node, one["rank"])
            record.pid, record.started = one["pid"], one["time"]

    def _take_exited(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        record = self._record(attempt, node, message["rank"])
        for key in _REPORT_KEYS:
            setattr(record, key, message[key])
        record.ended = message["time"]
        record.kernel_oom_kills = message["oom_kills"]
        record.memory = Memory(**message["memory"]) if message["memory"] else None
        if attempt.ending is not None:
            return
        if attempt.must_end(self._launch.pdb_rank):
            reason = Reason.STORAGE if self._full else None
            self._end(Ending(cause="failure", time=time.time(), reason=reason, message=self._full))
            pause_s = _BLAME_PAUSE_S if record.lost_a_peer else 0.0
            self._loop.after(pause_s, lambda: self._tell_failure(attempt))
        elif record.failed:
            self._warn(f"Rank {record.rank} has failed; the others are kept for the debugger.")
        else:
            self._watchdog.rank_ended(record.rank)

    def _tell_failure(self, attempt: Attempt) -> None:
        """Let everybody know why, while the other ranks are being ended; the result has the last word."""
        failure = attempt.first_failure()
        if failure is None or attempt is not self._attempt:
            return
        if attempt.ending is not None and attempt.ending.cause == "failure" and attempt.ending.reason is None:
            verdict = explain_failure(self._launch, attempt, failure)
            self._write_event("first_failure", **render_first_failure(failure, verdict))

    def _take_full(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        """The end of a rank may be what could not be noted: first let ranks that succeed do so."""
        if not self._full:
            self._full = f"Node {node}: {message['text']}"
            self._loop.after(_FULL_PAUSE_S, lambda: self._end_full(attempt))

    def _end_full(self, attempt: Attempt) -> None:
        if attempt is self._attempt and attempt.ending is None:
            self._fail(Reason.STORAGE, self._full)
            self._advance()

    def _take_cleared(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        attempt.cleared.add(node)
        if message["stuck"]:
            attempt.stuck[node] = message["stuck"]

    def _record(self, attempt: Attempt, node: int, rank: int) -> RankRecord:
        fresh = RankRecord(rank=rank, node=node, host=self._members.by_node[node].host)
        return attempt.ranks.setdefault(rank, fresh)

    def _on_agent_lost(self, member: Member, detail: str) -> None:
        if self._node is None or self._step == "over":
            return
        self._node.journal.write("agent_lost", node=member.node, host=member.host, detail=detail)
        message, lost = f"Node {member.node} ({member.host}) was lost: {detail}.", {member.node: "lost"}
        attempt = self._attempt
        if attempt is None:  # between two attempts: the next one finds out
            self._open_attempt()
        elif attempt.ending is not None and attempt.ending.cause == "failure":
            attempt.ending = replace(attempt.ending, reason=Reason.NODE_LOST, message=message, nodes=lost)
        self._fail(Reason.NODE_LOST, message, nodes=lost)
        self._advance()

    # The steps of an attempt

    def _begin_attempt(self) -> None:
        if self._attempt is None:
            self._open_attempt()
            self._advance()

    def _open_attempt(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        number, self._number = self._number, self._number + 1
        self._attempt = Attempt(
            number=number,
            launch=self._launch.launch,
            started=time.time(),
            shape=self._launch.shape(self._members.lost),
        )
        self._step, self._full = "gather", ""
        self._make_folder(number)
        if self._node is not None:
            self._node.open(number)
        limit_s = self._launch.stop.start_timeout_s + _CHARGED_S_PER_NODE * self._launch.nodes
        self._timers = [self._loop.after(limit_s, self._on_start_timeout)]

    def _make_folder(self, number: int) -> None:
        folder = self._site.run.attempt(number).path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._foothold.hold(folder)
        except OSError as error:
            self._fail(Reason.STORAGE, f"The attempt cannot start: {describe_full(folder, error)}.")

    def _advance(self) -> None:
        """Take the next step of the attempt, as far as what is known allows."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.ending is not None:
            if self._step == "gather" or attempt.all_cleared(frozenset(self._members.lost)):
                self._finish(attempt, attempt.ending)
        elif self._step == "gather" and not self._members.missing:
            self._prepare(attempt)
        elif self._step == "prepare" and attempt.all_ready():
            self._compare(attempt)
        elif self._step == "check" and self._preflight.is_complete(attempt):
            self._judge(attempt)
        elif self._step == "start" and attempt.all_started():
            self._run(attempt)
        elif self._step == "run" and attempt.all_succeeded():
            self._end(self._complete(attempt), grace_s=self._launch.stop.failure_grace_s)

    def _complete(self, attempt: Attempt) -> Ending:
        """All ranks have ended with 0: they are done, or `gangline.should_stop()` told them that time is short."""
        now = time.time()
        signalled = self._launch.stop.notice_signal is not NoticeSignal.NONE
        told = signalled or self._site.run.attempt(attempt.number).stop_at.exists()
        if attempt.noticed is None or not told or attempt.is_complete():
            return Ending(cause="success", time=now)
        limit = f"{self._launch.stop.time_limit_s:g} s"
        text = f"The time limit of {limit} was near: all ranks were told, and ended by themselves."
        return Ending(cause="time_limit", time=now, reason=Reason.TIME_LIMIT, message=text)

    def _prepare(self, attempt: Attempt) -> None:
        self._members.sealed = True
        try:
            with self._life.busy():  # checking what large checkpoints hold takes its time
                attempt.resume = resolve_resume(self._launch, attempt.number)
        except OSError as error:
            attempt.resume = Resume(refused=f"checkpoints in {self._launch.checkpoint.path} cannot be read: {error}")
        looked = Looked() if self._source is None else self._source.look(attempt.number)
        for note in filter(None, (*attempt.resume.notes, looked.describe())):
            self._warn(note)
        refused = attempt.resume.refused or looked.refused
        if refused:
            self._fail(Reason.STORAGE, f"The attempt cannot start: {refused}.")
            self._advance()
            return
        self._step = "prepare"
        meet = self._members.meeting_point(self._advertised)
        self._members.send({"do": "prepare", "attempt": attempt.number, "meet": meet})

    def _compare(self, attempt: Attempt) -> None:
        """The nodes fit together, or the attempt ends here."""
        refused = self._preflight.compare(attempt, self._members.by_node)
        if refused:
            self._fail(Reason.ENVIRONMENT_MISMATCH, refused)
            self._advance()
            return
        order = self._preflight.order(attempt)
        if order is None:
            self._start(attempt)
        elif self._reserve():
            self._step = "check"
            where = {"master_addr": self._members.meeting_address(self._advertised), "master_port": self._meeting_port}
            self._members.send({**order, **where})

    def _judge(self, attempt: Attempt) -> None:
        """The nodes are fit, or the attempt ends here."""
        if self._port is not None:
            self._port.release()
        faults = self._preflight.judge(self._members.by_node)
        if faults:
            nodes = {fault.node: fault.check for fault in reversed(faults)}  # the first check of each counts
            self._fail(Reason.UNHEALTHY_NODE, describe_faults(faults, self._members.by_node), nodes=nodes)
            self._advance()
            return
        self._write_event("preflight", text=self._preflight.summary(self._members.by_node))
        self._start(attempt)

    def _reserve(self) -> bool:
        """Choose the port on which ranks meet; False: there is none, and the attempt ends."""
        try:
            self._port = reserve_port()
        except Transient as error:
            self._fail(Reason.RENDEZVOUS_FAILED, str(error))
            return False
        self._meeting_port = self._port.port
        return True

    def _start(self, attempt: Attempt) -> None:
        if not self._reserve():
            return
        self._step = "start"
        attempt.master_addr = self._members.meeting_address(self._advertised)
        attempt.master_port = self._meeting_port
        self._write_gang(attempt)
        order = {
            "do": "start",
            "attempt": attempt.number,
            "nodes": attempt.shape.nodes,
            "master_addr": attempt.master_addr,
            "master_port": attempt.master_port,
            "resume": attempt.resume.path or None,
            "resume_step": attempt.resume.step,
            "fresh": attempt.resume.fresh or None,
            "cluster": render_cluster(attempt, self._members.by_node),
        }
        self._members.send(order)

    def _run(self, attempt: Attempt) -> None:
        self._step = "run"
        attempt.running = time.time()
        self._timers.pop().cancel()
        limit_s = self._launch.stop.time_limit_s
        if limit_s is not None:
            notice_s = self._launch.stop.notice_s()
            self._timers.append(self._loop.after(limit_s, self._on_time_limit))
            self._timers.append(self._loop.after(limit_s - notice_s, lambda: self._give_notice(attempt, notice_s)))
        self._write_event("attempt_running")
        self._watchdog.begin(attempt)
        self._advance()

    def _on_start_timeout(self) -> None:
        missing = self._members.missing
        if self._step == "gather" and self._may_go_on_without(missing):
            self._go_on_without(missing)
            return
        waited = f"{self._launch.stop.start_timeout_s:.0f} s"
        who = f"nodes {missing} did not join" if missing else "the ranks were not started"
        told = "".join(f" {text}" for node in missing for text in self._words_of(node))
        self._fail(Reason.START_TIMEOUT, f"The gang was not complete after {waited}: {who}.{told}")
        self._advance()

    def _look_for_unreached(self) -> None:
        """End an attempt for which a node waits in vain: it is there, and does not reach this one."""
        if self._attempt is None or self._step != "gather" or self._attempt.ending is not None:
            return
        now = time.monotonic()
        for node in self._members.missing:
            told = [text for text in self._words_of(node) if UNREACHED in text]
            since = self._unreached.setdefault((self._number, node), now) if told else now
            if now - since > min(_UNREACHED_S, self._launch.stop.start_timeout_s / 4):
                self._fail(Reason.START_TIMEOUT, f"The gang cannot assemble. {told[0]}")
                self._advance()
                return

    def _may_go_on_without(self, nodes: list[int]) -> bool:
        """An elastic gang that is large enough without them."""
        return bool(nodes) and self._launch.nodes - len(self._members.lost) - len(nodes) >= self._launch.fewest_nodes

    def _go_on_without(self, missing: list[int]) -> None:
        attempt = self._attempt
        assert attempt is not None  # noqa: S101 - its timer has called
        told = "".join(f" {text}" for node in missing for text in self._words_of(node))
        self._warn(
            f"Nodes {missing} did not join within {self._launch.stop.start_timeout_s:.0f} s; "
            f"the gang starts without them.{told}"
        )
        self._members.give_up_missing()
        attempt.shape = self._launch.shape(self._members.lost)
        limit_s = self._launch.stop.start_timeout_s
        self._timers = [self._loop.after(limit_s, self._on_start_timeout)]
        self._advance()

    def _words_of(self, node: int) -> list[str]:
        """What a node that did not join has left in its journal, where the two share a file system."""
        events = read_journal(self._site.run.attempt(self._number - 1).events(node))
        return [event["text"] for event in events if event["kind"] == "warning"][-1:]

    def _give_notice(self, attempt: Attempt, notice_s: float) -> None:
        """Tell ranks that the time limit is near. SIGTERM has to wait: a script that does not ask works to the end."""
        if attempt.ending is None:
            attempt.noticed = time.time()
            notice = {"cause": "time_limit", "deadline": attempt.noticed + notice_s, "notice_s": notice_s}
            self._members.send({"do": "notice", "attempt": attempt.number, **notice})

    def _on_time_limit(self) -> None:
        limit = f"{self._launch.stop.time_limit_s:g} s"
        self._warn(f"The time limit of {limit} is reached; ranks are told to stop.")
        attempt = self._attempt
        left = [] if attempt is None else sorted(rank for rank, one in attempt.ranks.items() if one.ended is None)
        told = f", and {name_ranks(left)} had not ended although told {self._launch.stop.notice_s():g} s before"
        message = f"The time limit of {limit} was reached{told if left else ''}."
        ending = Ending(cause="time_limit", time=time.time(), reason=Reason.TIME_LIMIT, message=message)
        self._end(ending, grace_s=self._launch.stop.grace_s)

    def _on_hang(self, hang: Hang | None) -> None:
        reason, message = (None, "") if hang is None else (Reason.HANG, hang.message)
        ending = Ending(cause="failure", time=time.time(), reason=reason, message=message, hang=hang)
        self._end(ending, grace_s=min(_HANG_GRACE_S, self._launch.stop.failure_grace_s))

    # The end of an attempt

    def _fail(self, reason: Reason, message: str, *, nodes: Mapping[int, str] | None = None) -> None:
        self._end(Ending(cause="failure", time=time.time(), reason=reason, message=message, nodes=nodes or {}))

    def _end(self, ending: Ending, *, grace_s: float | None = None) -> None:
        """Have the attempt ended on all nodes. A second call makes it end sooner, or turns a failure into a stop."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.ending is None or (ending.cause == "stop" and attempt.ending.cause in {"failure", "time_limit"}):
            attempt.ending = ending
        self._watchdog.end()
        patience_s = self._launch.stop.failure_grace_s if grace_s is None else grace_s
        order = {"do": "stop", "cause": ending.cause, "grace_s": patience_s, "deadline": time.time() + patience_s}
        if self._step == "gather":
            self._advance()
        else:
            self._members.send(order)

    def _finish(self, attempt: Attempt, ending: Ending) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._port is not None:
            self._port.release()
        attempt.ended = time.time()
        attempt.hosts = {node: member.host for node, member in self._members.by_node.items()}
        outcome = self._outcome_of(attempt, ending)
        self._foothold.release(self._site.run.attempt(attempt.number).path)
        self._attempt = None
        self._step = "between"
        self._write_result(attempt, outcome, tries=_MOST_WRITES)

    def _standing(self, attempt: Attempt) -> Standing:
        failure = attempt.first_failure()
        said = attempt.ending.message if attempt.ending is not None else ""
        return Standing(
            used=self._used,
            free_retries=self._free_retries,
            repeated=self._repeats.note(failure, step=None if failure is None else failure.step, said=said),
            lost_nodes=len(self._members.lost),
        )

    def _newest_step(self, attempt: Attempt, ending: Ending) -> int | None:
        """Where the next attempt would go on, if the policy for time limits asks."""
        if ending.cause != "time_limit" or self._launch.stop.on_time_limit is not OnTimeLimit.CONTINUE:
            return None
        try:
            with self._life.busy():
                return resolve_resume(self._launch, attempt.number + 1).step
        except OSError as error:
            self._warn(f"Checkpoints in {self._launch.checkpoint.path} cannot be read: {error}.")
            return None

    def _outcome_of(self, attempt: Attempt, ending: Ending) -> Outcome:
        lost = self._foothold.find_lost()
        if lost is not None and ending.cause != "stop":
            return decide_lost_folder(str(lost), ending.message)
        missing = find_missing_outputs(self._launch.outputs, self._site.workdir) if ending.cause == "success" else []
        newest_step = self._newest_step(attempt, ending)
        return decide_outcome(
            self._launch, attempt, self._standing(attempt), missing_outputs=missing, newest_step=newest_step
        )

    def _write_result(self, attempt: Attempt, outcome: Outcome, *, tries: int) -> None:
        """The truth about the attempt has to be on disk before anything follows from it."""
        result = render_result(attempt, outcome)
        try:
            write_json(self._site.run.attempt(attempt.number).result, result)
        except OSError as error:
            complain(f"the result of attempt {attempt.number} cannot be written: {error}")
            if is_full(error):
                self._life.give_room()
                tries = min(tries, _MOST_WRITES_FULL)
            if tries > 0:
                self._loop.after(_WRITE_AGAIN_S, lambda: self._write_result(attempt, outcome, tries=tries - 1))
            else:
                self._give_up(error)
            return
        keys = {key: value for key, value in result.items() if key not in {"version", "ranks"}}
        self._write_event("attempt_ended", **keys)
        self._follow(outcome)

    def _give_up(self, error: OSError) -> None:
        """Nothing may follow from an end that nobody can read of."""
        complain(f"{STORAGE_WORDS}: {describe_full(self._site.run.path, error)}")
        self._step = "over"
        self._members.dismiss()
        self._loop.stop(EXIT_STORAGE)

    def _follow(self, outcome: Outcome) -> None:
        if outcome.next != "restart":
            self._step = "over"
            self._members.dismiss()
            self._loop.stop(0)
            return
        if outcome.free_retry:
            self._free_retries += 1
        elif outcome.budget is not None:
            self._used[outcome.budget] = self._used.get(outcome.budget, 0) + 1
        self._pause = self._loop.after(outcome.delay_s, self._begin_attempt)

    def close(self) -> None:
        """Hang up on the followers."""
        self._members.close()
        self._foothold.close()
        if self._source is not None:
            self._source.close()

    # Small parts

    def _write_gang(self, attempt: Attempt) -> None:
        path = self._site.run.attempt(attempt.number).gang
        try:
            write_json(path, render_gang(self._launch, attempt, self._members.by_node))
        except OSError as error:
            self._warn(f"The list of members could not be written: {error}.")

    def _write_event(self, kind: str, **keys: object) -> None:
        if self._node is not None:
            self._node.journal.write(kind, **keys)

    def _warn(self, text: str) -> None:
        self._write_event("warning", text=text)


def _open_source(site: Site, *, fresh: bool) -> SourceTree | None:
    """None where there is no snapshot, or where its contents are not reached."""
    objects = site.launch.objects
    return None if objects is None else SourceTree(site.run, Path(objects), fresh=fresh)
