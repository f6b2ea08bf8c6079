"""The agent of node 0: it owns the gang. It numbers attempts, starts and ends them, and has the next one follow.

This is the state machine of attempts (`Step`) and nothing else: `_advance` takes the next step whenever something was
learnt, `_end` has the attempt ended from any step. What each step needs is done by a part with one job, and comes
back through a callback. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from gangline.agent.assembly import Assembly
from gangline.agent.attempt import Attempt, Ending, Hang, RankRecord
from gangline.agent.attemptclock import AttemptClock, decide_completion, read_told
from gangline.agent.control import ControlFile, Requests, StacksRequest, StopRequest
from gangline.agent.gangfile import next_attempt, render_start, write_gang
from gangline.agent.gangwatch import GangWatch
from gangline.agent.groundwork import Groundwork
from gangline.agent.lease import Lease
from gangline.agent.life import BEAT_S, LifeSign
from gangline.agent.loop import Loop, Timer
from gangline.agent.meeting import Meeting
from gangline.agent.members import Member, Members
from gangline.agent.node import Node
from gangline.agent.preflight import Preflight
from gangline.agent.pulse import Pulse
from gangline.agent.reports import describe_lost_support, note_cleared, note_exited, note_ready, note_started
from gangline.agent.site import EXIT_GOES_ON, EXIT_STORAGE, NEAR_THE_END, Site, machine_id
from gangline.agent.strategies import WITH_COMPANY, rules_of
from gangline.domain.errors import Transient
from gangline.domain.phase import Reason

if TYPE_CHECKING:
    from gangline.agent.conclusion import Conclusion
    from gangline.agent.result import Outcome

__all__ = ["Leader", "Step"]

_FULL_PAUSE_S = 0.5
_HANG_GRACE_S = 1.0  # ranks that hang have nothing to save, and mostly hear nothing
_LOOK_AGAIN_S = 1.0
_BLAME_PAUSE_S = 0.15
"""How long a rank that only lost a peer is not told of, in case that the one that is to blame is seen a bit later."""


class Step(Enum):
    """Where an attempt stands. Any of them may be followed by its end, which begins with `Leader._end`."""

    BETWEEN = "between"
    """No attempt; the next one waits for its pause."""
    GATHER = "gather"
    """All agents join."""
    PREPARE = "prepare"
    """Each node says that it can start."""
    CHECK = "check"
    """Each node looks whether it is fit, where the spec asks for it."""
    START = "start"
    RUN = "run"
    OVER = "over"
    """The launch has come to its end."""


class Leader:
    """Runs the attempts of one launch, one after the other."""

    def __init__(self, site: Site, loop: Loop, *, advertised: str | None) -> None:
        launch = site.launch
        self._site, self._launch, self._loop, self._advertised = site, launch, loop, advertised
        self._number = next_attempt(site)
        self._attempt: Attempt | None = None
        self._step = Step.BETWEEN
        self._pause: Timer | None = None
        self._node: Node | None = None
        self._full = ""
        """What cannot be written in the attempt that runs; "": everything can."""
        self._pulse = Pulse(loop)
        self._members = members = Members(
            launch, loop, self._pulse, on_joined=self._advance, on_message=self.hear, on_lost=self._on_agent_lost
        )
        self._assembly = Assembly(
            site, loop, members, warn=self._warn, fail=self._on_not_assembled, go_on=self._advance
        )
        self._life = LifeSign(site.run.launch(launch.launch).alive)
        self._ground = Groundwork(site, self._pulse, fresh=self._number == 0, warn=self._warn)
        self._preflight = Preflight(launch, warn=self._warn)
        self._meeting = Meeting(members, advertised)
        self._clock = AttemptClock(
            launch.stop, site.allocation, loop, send=members.send, warn=self._warn, on_limit=self._on_time_limit
        )
        self._watch = GangWatch(site, loop, send=members.send, write=self._write_event, on_hang=self._on_hang)
        self._lease = Lease(launch.lease_s, on_ended=lambda: self.request_stop(StopRequest(cause="lease")))
        self._conclusion: Conclusion | None = None

    def begin(self, node: Node) -> None:
        """Let followers join, and start the first attempt when its pause is over."""
        site, machine = self._site, machine_id()
        self._node = node
        self._members.add_self(
            Member(node=0, host=site.host, address=site.address, pid=os.getpid(), machine=machine, send=node.handle)
        )
        if self._launch.nodes > 1:
            self._members.listen(site.run.launch(self._launch.launch), machine=machine, advertised=self._advertised)
        self._life.begin()
        self._pulse.every(BEAT_S, self._life.beat)
        self._loop.every(BEAT_S, self._look_at_folder)
        control = ControlFile(site.run.control, self._launch.control_offset)
        requests = Requests(
            control,
            on_stop=self.request_stop,
            on_stacks=self._ask_stacks,
            on_moved=self._clock.moved,
            on_renewal=self._lease.renew,
            warn=self._warn,
        )
        requests.begin(self._loop)
        self._lease.begin(self._loop)
        self._pause = self._loop.after(self._launch.delay_s, self._begin_attempt)

    def close(self) -> None:
        """Hang up on the followers."""
        self._pulse.close()
        self._members.close()
        self._ground.close()

    # What is heard

    def hear(self, node: int, message: dict[str, Any]) -> None:
        """A report of a node."""
        if message["say"] == "signalled":
            self._take_signal(node, message["signal"])
            return
        attempt = self._attempt
        if attempt is None or message.get("attempt") != attempt.number:
            return
        take: dict[str, Callable[[Attempt, int, dict[str, Any]], None]] = {
            "ready": self._take_ready,
            "started": self._take_started,
            "exited": self._take_exited,
            "cleared": note_cleared,
            "full": self._take_full,
            "company": self._take_company,
            "checked": lambda _, node, said: self._preflight.take(node, said["results"]),
        }
        if message["say"] in {"activity", "pace", "stacks"}:
            self._watch.take(message, self._members.by_node[node])
            return
        take[message["say"]](attempt, node, message)
        self._advance()

    def _take_signal(self, node: int, name: str) -> None:
        """A scheduler, or somebody at the machine, wants the gang to know something."""
        if name == NEAR_THE_END.name:
            self._clock.warned()
            return
        cause = "time_limit" if self._clock.is_over() else "preemption"
        self.request_stop(StopRequest(cause=cause, by=f"{name} to the agent of node {node}, sent from outside"))

    def request_stop(self, request: StopRequest) -> None:
        """Somebody wants the run to end: ranks get a notice, grace, and then the attempt is over."""
        if self._step is Step.OVER:
            return
        if self._attempt is None:
            self._open_attempt()
        grace_s = self._launch.stop.grace_s if request.grace_s is None else request.grace_s
        self._end(request.ending(time.time()), grace_s=grace_s)

    def _ask_stacks(self, request: StacksRequest) -> None:
        self._watch.ask(request, newest=max(0, self._number - 1))

    def _take_ready(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        note_ready(attempt, node, message)
        refused = message["refused"]
        if refused:
            text = f"Node {node} ({self._members.by_node[node].host}): {refused['text']}."
            self._fail(Reason(refused["reason"]), text)

    def _take_started(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        member = self._members.by_node[node]
        note_started(attempt, node, message, host=member.host, ahead_s=member.ahead_s)

    def _take_exited(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        member = self._members.by_node[node]
        record = note_exited(attempt, node, message, host=member.host, ahead_s=member.ahead_s, heard=time.time())
        if attempt.ending is not None:
            self._dismiss_company(attempt)
        elif attempt.lost_support(record):
            self._fail(Reason.COMMUNICATION, describe_lost_support(record))
        elif attempt.must_end(self._launch.pdb_rank):
            self._end_failed(attempt, record)
        elif record.failed:
            self._warn(f"Rank {record.rank} has failed; the others are kept for the debugger.")
        else:
            self._watch.rank_ended(record.rank)

    def _take_company(self, _attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        """What stands beside the ranks of a node cannot come, or is gone."""
        self._fail(Reason(message["reason"]), f"Node {node} ({self._members.by_node[node].host}): {message['text']}.")

    def _dismiss_company(self, attempt: Attempt) -> None:
        """Ranks that were asked to end have all done so, or never began: what they may have needed for that can go."""
        asked = attempt.ending is not None and attempt.ending.cause not in {"failure", "success"}
        over = attempt.all_ended() or self._step is Step.START
        if asked and over and self._launch.strategy in WITH_COMPANY:
            grace_s = self._launch.stop.failure_grace_s
            self._members.send(
                {"do": "stop", "cause": "success", "grace_s": grace_s, "deadline": time.time() + grace_s}
            )

    def _end_failed(self, attempt: Attempt, record: RankRecord) -> None:
        reason = Reason.STORAGE if self._full else None
        self._end(Ending(cause="failure", time=time.time(), reason=reason, message=self._full))
        pause_s = _BLAME_PAUSE_S if record.lost_a_peer else 0.0
        self._loop.after(pause_s, lambda: self._tell_failure(attempt))

    def _tell_failure(self, attempt: Attempt) -> None:
        if attempt is self._attempt:
            self._concluding().tell_failure(attempt)

    def _take_full(self, attempt: Attempt, node: int, message: dict[str, Any]) -> None:
        """The end of a rank may be what could not be noted: first let ranks that succeed do so."""
        if not self._full:
            self._full = f"Node {node}: {message['text']}"
            self._loop.after(_FULL_PAUSE_S, lambda: self._end_full(attempt))

    def _end_full(self, attempt: Attempt) -> None:
        if attempt is self._attempt and attempt.ending is None:
            self._fail(Reason.STORAGE, self._full)

    def _on_agent_lost(self, member: Member, detail: str) -> None:
        if self._node is None or self._step is Step.OVER:
            return
        self._write_event("agent_lost", node=member.node, host=member.host, detail=detail)
        message, lost = f"Node {member.node} ({member.host}) was lost: {detail}.", {member.node: "lost"}
        attempt = self._attempt
        if attempt is None:  # between two attempts: the next one finds out
            self._open_attempt()
        elif attempt.ending is not None and attempt.ending.cause == "failure":
            attempt.ending = replace(attempt.ending, reason=Reason.NODE_LOST, message=message, nodes=lost)
        self._fail(Reason.NODE_LOST, message, nodes=lost)

    def _look_at_folder(self) -> None:
        """See whether anybody could still follow or stop the run."""
        if self._ground.has_lost_all():
            self._loop.after(_LOOK_AGAIN_S, self._on_folder_lost)

    def _on_folder_lost(self) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.ending is None and self._ground.has_lost_all():
            self._fail(Reason.STORAGE, "Nobody could follow or stop the run any more, so its ranks were ended.")

    def _on_not_assembled(self, message: str) -> None:
        self._fail(Reason.START_TIMEOUT, message)

    def _on_time_limit(self, ending: Ending) -> None:
        self._end(ending, grace_s=self._launch.stop.grace_s)

    def _on_hang(self, hang: Hang | None) -> None:
        reason, message = (None, "") if hang is None else (Reason.HANG, hang.message)
        ending = Ending(cause="failure", time=time.time(), reason=reason, message=message, hang=hang)
        self._end(ending, grace_s=min(_HANG_GRACE_S, self._launch.stop.failure_grace_s))

    # The steps of an attempt

    def _begin_attempt(self) -> None:
        if self._attempt is None:
            self._open_attempt()
            self._advance()

    def _open_attempt(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        number, self._number = self._number, self._number + 1
        shape = self._launch.shape(self._members.lost)
        rules = rules_of(self._launch.strategy)
        self._attempt = attempt = Attempt(
            number=number,
            launch=self._launch.launch,
            started=time.time(),
            shape=shape,
            supporting=frozenset(filter(rules.supports, range(shape.world_size))),
            lost_code=rules.lost_code,
        )
        self._step, self._full = Step.GATHER, ""
        fault = self._ground.make_folder(number)
        if self._node is not None:
            self._node.open(number)
        self._assembly.begin(attempt)
        if fault:
            self._fail(Reason.STORAGE, f"The attempt cannot start: {fault}.")

    def _advance(self) -> None:
        """Take the next step of the attempt, as far as what is known allows."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.ending is not None:
            if self._step is Step.GATHER or attempt.all_cleared(frozenset(self._members.lost)):
                self._finish(attempt, attempt.ending)
        elif self._step is Step.GATHER and not self._members.missing:
            self._prepare(attempt)
        elif self._step is Step.PREPARE and attempt.all_ready():
            self._compare(attempt)
        elif self._step is Step.CHECK and self._preflight.is_complete(attempt):
            self._judge(attempt)
        elif self._step is Step.START and attempt.all_started():
            self._run(attempt)
        elif self._step is Step.RUN and attempt.all_succeeded():
            told = read_told(self._site.run.attempt(attempt.number))
            ending = decide_completion(self._launch.stop, self._clock.limit, attempt, now=time.time(), **told)
            self._end(ending, grace_s=self._launch.stop.failure_grace_s)

    def _prepare(self, attempt: Attempt) -> None:
        self._assembly.seal()
        fault = self._ground.prepare(attempt)
        if fault:
            self._fail(Reason.STORAGE, f"The attempt cannot start: {fault}.")
            return
        self._step = Step.PREPARE
        self._members.send({"do": "prepare", "attempt": attempt.number, "meet": self._meeting.to_try()})

    def _compare(self, attempt: Attempt) -> None:
        """The nodes fit together, or the attempt ends here."""
        ending = self._preflight.compare(attempt, self._members.by_node)
        if ending is not None:
            self._end(ending)
            return
        if not self._preflight.is_due:
            self._start(attempt)
        elif (where := self._reserve()) is not None:
            self._step = Step.CHECK
            self._members.send(self._preflight.order(attempt, where))

    def _judge(self, attempt: Attempt) -> None:
        """The nodes are fit, or the attempt ends here."""
        self._meeting.release()
        ending = self._preflight.judge(self._members.by_node)
        if ending is not None:
            self._end(ending)
            return
        self._write_event("preflight", text=self._preflight.summary(self._members.by_node))
        self._start(attempt)

    def _reserve(self) -> tuple[str, int] | None:
        """Where ranks meet; None: there is no port, and the attempt ends."""
        try:
            return self._meeting.reserve()
        except Transient as error:
            self._fail(Reason.RENDEZVOUS_FAILED, str(error))
            return None

    def _start(self, attempt: Attempt) -> None:
        where = self._reserve()
        if where is None:
            return
        self._step = Step.START
        attempt.master_addr, attempt.master_port = where
        fault = write_gang(self._site, attempt, self._members.by_node)
        if fault:
            self._warn(fault)
        self._members.send(render_start(attempt, self._members.by_node))

    def _run(self, attempt: Attempt) -> None:
        self._step = Step.RUN
        attempt.running = time.time()
        self._assembly.end()
        self._clock.begin(attempt)
        self._write_event("attempt_running")
        self._watch.begin(attempt)
        self._advance()

    # The end of an attempt

    def _fail(self, reason: Reason, message: str, *, nodes: Mapping[int, str] | None = None) -> None:
        self._end(Ending(cause="failure", time=time.time(), reason=reason, message=message, nodes=nodes or {}))

    def _end(self, ending: Ending, *, grace_s: float | None = None) -> None:
        """Have the attempt ended on all nodes. A second call makes it end sooner, or says what it really was."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.is_ended_by(ending):
            attempt.ending = ending
        self._watch.end()
        patience_s = self._launch.stop.failure_grace_s if grace_s is None else grace_s
        if self._step is not Step.GATHER:
            order = {"do": "stop", "cause": ending.cause, "grace_s": patience_s, "deadline": time.time() + patience_s}
            self._members.send(order)
            self._dismiss_company(attempt)
        self._advance()

    def _finish(self, attempt: Attempt, ending: Ending) -> None:
        """No process of the attempt is left: what follows is decided, and noted before it follows."""
        self._assembly.end()
        self._clock.end()
        self._meeting.release()
        attempt.ended = time.time()
        attempt.hosts = {node: member.host for node, member in self._members.by_node.items()}
        self._attempt, self._step = None, Step.BETWEEN
        self._concluding().conclude(attempt, ending, lost_nodes=len(self._members.lost))

    def _concluding(self) -> Conclusion:
        if self._conclusion is None:
            from gangline.agent.conclusion import Conclusion  # noqa: PLC0415 - nothing of it is needed to start

            self._conclusion = Conclusion(
                self._site,
                self._loop,
                ground=self._ground,
                life=self._life,
                write=self._write_event,
                on_written=self._follow,
                on_given_up=lambda: self._leave(EXIT_STORAGE),
            )
        return self._conclusion

    def _follow(self, result: dict[str, Any], outcome: Outcome) -> None:
        """The result is on the disk: the next attempt follows, or the launch is over."""
        keys = {key: value for key, value in result.items() if key not in {"version", "ranks"}}
        self._write_event("attempt_ended", **keys)
        if outcome.next != "restart":
            self._leave(self._exit_code(outcome))
            return
        self._concluding().pay(outcome)
        self._pause = self._loop.after(outcome.delay_s, self._begin_attempt)

    def _exit_code(self, outcome: Outcome) -> int:
        """Of this agent: 0, unless whoever started it is to see how the run fared."""
        if not self._site.allocation.tells:
            return 0
        return outcome.exit_code if outcome.next == "end" else EXIT_GOES_ON

    def _leave(self, exit_code: int) -> None:
        self._step = Step.OVER
        self._members.dismiss()
        self._loop.stop(exit_code)

    # Small parts

    def _write_event(self, kind: str, **keys: object) -> None:
        if self._node is not None:
            self._node.journal.write(kind, **keys)

    def _warn(self, text: str) -> None:
        self._write_event("warning", text=text)
