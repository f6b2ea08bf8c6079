"""The leader's part of the watchdog: hears what nodes see, has stacks taken, says who is missing, and acts by policy.

One attempt at a time: `begin`, then reports through `take`, until `end`. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gangline.agent.attempt import Attempt, Hang
from gangline.agent.control import StacksRequest
from gangline.agent.gangfile import name_ranks
from gangline.agent.gangwire import Message
from gangline.agent.loop import Loop, Timer
from gangline.agent.site import Site
from gangline.agent.watch.flight import describe_flights
from gangline.agent.watch.gathering import Answer, Gathering
from gangline.agent.watch.places import Finding, have_moved
from gangline.agent.watch.vigil import Activity, Level, Look, Vigil, decide_period_s
from gangline.domain.spec import OnHang
from gangline.rundir.files import write_json

__all__ = ["Watchdog"]

_ACT_PATIENCE_S = 1.5
_ASK_PATIENCE_S = 4.0
_NATIVE_PATIENCE_S = 8.0
_NATIVE_FROM_S = 60.0
"""Limits from which on there is time for native frames: symbols of large libraries take seconds."""
_NODE_SLACK_S = 1.0
_INFRASTRUCTURE = frozenset({"stopped", "blocked", "silent"})


class Writer(Protocol):
    """What writes an event: the journal of the leader's node."""

    def __call__(self, kind: str, **keys: object) -> None: ...


@dataclass(slots=True)
class _Sight:
    """The last time that stacks were taken because nothing moved."""

    sign: float
    answer: Answer


class Watchdog:
    """Watches the gang of one launch.

    Args:
        send: tells all nodes.
        write: records an event.
        on_hang: the gang hangs, and the policy says that the attempt ends.
            None: it waits for ranks that have raised and don't end.
    """

    def __init__(
        self,
        site: Site,
        loop: Loop,
        *,
        send: Callable[[Message], None],
        write: Writer,
        on_hang: Callable[[Hang | None], None],
    ) -> None:
        self._site = site
        self._policy = site.launch.watch
        self._loop = loop
        self._send = send
        self._write = write
        self._on_hang = on_hang
        self._attempt: Attempt | None = None
        self._vigil: Vigil | None = None
        self._tick: Timer | None = None
        self._gatherings: dict[str, Gathering] = {}
        self._looking = False
        """Stacks are being taken because nothing moves."""
        self._left_told: float | None = None
        """The last sign of progress before ranks were told of that can never go on."""
        self._before: _Sight | None = None

    def begin(self, attempt: Attempt) -> None:
        """All ranks of an attempt have started."""
        self._attempt, self._before, self._looking = attempt, None, False
        self._left_told = None
        limit_s = self._policy.hang_timeout_s
        if limit_s > 0 and self._site.launch.pdb_rank is None:  # who debugs a rank holds up the others
            nodes = attempt.shape.nodes
            self._vigil = Vigil(limit_s=limit_s, nodes=nodes, period_s=decide_period_s(limit_s), now=time.monotonic())
            for record in attempt.ranks.values():
                if record.ended is not None:
                    self._vigil.ended(record.rank, time.monotonic())
            self._tick = self._loop.after(decide_period_s(limit_s), self._look)

    def end(self) -> None:
        """The attempt is being ended: nothing more is decided about it; who waits for stacks gets what there is."""
        if self._tick is not None:
            self._tick.cancel()
        self._vigil = self._tick = None
        for gathering in list(self._gatherings.values()):
            self._complete(gathering)
        self._attempt = None

    def take_activity(self, node: int, message: Mapping[str, Any]) -> None:
        """A node's report about its ranks."""
        if self._vigil is not None:
            self._vigil.note(node, [Activity.from_dict(rank) for rank in message["ranks"]], time.monotonic())

    def take_stacks(self, node: int, message: Mapping[str, Any]) -> None:
        """A node's answer to a request."""
        gathering = self._gatherings.get(message["id"])
        if gathering is not None and gathering.take(node, message["ranks"]):
            self._complete(gathering)

    def rank_ended(self, rank: int) -> None:
        """A rank has ended by itself, with 0."""
        if self._vigil is not None:
            self._vigil.ended(rank, time.monotonic())

    def ask(self, request: StacksRequest, *, newest: int) -> None:
        """Somebody wants to see the stacks.

        Args:
            newest: number of the newest attempt, whose folder takes the answer where none runs.
        """
        if self._attempt is None:
            refused = {"version": 1, "id": request.id, "attempt": newest, "time": time.time()}
            self._save(newest, request.id, {**refused, "refused": "no attempt of it has ranks that run just now"})
            return
        patience_s = _NATIVE_PATIENCE_S if request.native else _ASK_PATIENCE_S
        self._gather(Gathering.asked(request, self._attempt, patience_s), self._tell_stacks)

    # Looking

    def _look(self) -> None:
        vigil = self._vigil
        if vigil is None:
            return
        self._tick = self._loop.after(decide_period_s(vigil.limit_s), self._look)
        now = time.monotonic()
        if not any(gathering.request.native for gathering in self._gatherings.values()):  # py-spy holds ranks then
            for held in vigil.held(now):
                self._tell_held(held)
        if self._looking:
            return
        look = vigil.look(now)
        if look.level is not Level.FINE:
            self._look_closer(vigil, look)

    def _look_closer(self, vigil: Vigil, look: Look) -> None:
        if self._attempt is None:
            return
        self._looking = True
        native = look.level is Level.CLOSER and vigil.limit_s >= _NATIVE_FROM_S
        request = StacksRequest(id=_new_id("hang"), native=native, by="the watchdog")
        patience_s = _NATIVE_PATIENCE_S if native else _ACT_PATIENCE_S
        sign = vigil.sign
        gathering = Gathering.asked(request, self._attempt, patience_s)
        self._gather(gathering, lambda answer: self._judge(vigil, look, sign, answer))

    def _judge(self, vigil: Vigil, look: Look, sign: float, answer: Answer) -> None:
        """Stacks were taken; meanwhile the gang may have gone on, or ended."""
        self._looking = False
        if vigil is not self._vigil or vigil.sign != sign:
            return
        now = time.monotonic()
        finding = answer.finding
        raised = vigil.raised()
        late = look.left_s >= vigil.early_s or look.level is Level.HANG
        if raised and late and self._policy.on_hang is not OnHang.WARN:
            names = name_ranks(raised)
            seen = f"No progress for {_seconds(look.quiet_s)}: {finding.text}"
            self._write("warning", text=f"{names[0].upper()}{names[1:]} raised and did not end. {seen}", rank=raised[0])
            self._on_hang(None)
            return
        before = self._before if self._before is not None and self._before.sign == sign else None
        if not look.early:
            self._before = _Sight(sign, answer)
        if finding.certain and late:
            self._act(vigil, look, answer)
        elif look.level is Level.HANG:
            if before is not None and have_moved(before.answer.views, answer.views) and vigil.extend(now):
                self._suspect(look, answer, " Its stacks move: it computes, and gets more time.")
            else:
                self._act(vigil, look, answer)
        elif not look.early:
            self._suspect(look, answer, "")
        elif finding.certain and self._left_told != sign:
            self._left_told = sign
            self._suspect(look, answer, self._say_certain(vigil.early_s - look.left_s))

    def _suspect(self, look: Look, answer: Answer, more: str) -> None:
        text = f"No progress for {_seconds(look.quiet_s)} of {_seconds(look.limit_s)}: {answer.finding.text}{more}"
        self._write("hang_suspected", text=text, **_facts(look, answer))

    def _say_certain(self, left_s: float) -> str:
        then = "a hang is told" if self._policy.on_hang is OnHang.WARN else "the attempt is ended as a hang"
        return f" That can never end: in about {max(1, round(left_s))} s {then}."

    def _act(self, vigil: Vigil, look: Look, answer: Answer) -> None:
        finding, policy = answer.finding, self._policy.on_hang
        flights = describe_flights(answer.flights)
        text = f"The gang hangs: no progress for {_seconds(look.quiet_s)}. {finding.text}{flights and ' ' + flights}"
        hint = _hint(finding, counts_steps=vigil.counts_steps)
        self._write("hang", text=text, action=policy.value, **{**_facts(look, answer), "hint": hint})
        if policy is OnHang.WARN:
            vigil.told(time.monotonic())
            return
        state = answer.state_of(finding.culprit)
        hang = Hang(
            message=text,
            hint=hint,
            rank=finding.culprit,
            time=time.time(),
            place=answer.place_of(finding.culprit),
            stack=answer.stack_of(finding.culprit),
            infrastructure=state in _INFRASTRUCTURE,
            places=answer.places(),
            blocked=state == "blocked",
            left=state == "ended",
        )
        self._on_hang(hang)

    def _tell_held(self, held: Activity) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        record = attempt.ranks[held.rank]
        who = f"Rank {held.rank} on node {record.node} ({record.host})"
        if held.state == "traced":
            text = f"{who} is held by a debugger or tracer (process {held.pid}); no hang is looked for meanwhile."
        else:
            goes_on = f"`kill -CONT {held.pid}` lets it go on"
            text = f"{who} is stopped (SIGSTOP, process {held.pid}): the others will wait for it. {goes_on}."
        self._write("warning", text=text, rank=held.rank)

    # Stacks

    def _gather(self, gathering: Gathering, on_done: Callable[[Answer], None]) -> None:
        gathering.on_done = on_done
        self._gatherings[gathering.request.id] = gathering
        wait_s = gathering.patience_s + _NODE_SLACK_S
        gathering.timer = self._loop.after(wait_s, lambda: self._complete(gathering))
        request = gathering.request
        order = {
            "do": "stacks",
            "attempt": gathering.attempt.number,
            "id": request.id,
            "ranks": None if request.ranks is None else list(request.ranks),
            "native": request.native,
            "patience_s": gathering.patience_s,
        }
        self._send(order)

    def _complete(self, gathering: Gathering) -> None:
        """All nodes have answered, or the time is over."""
        if self._gatherings.pop(gathering.request.id, None) is None:
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        if gathering.request.native and self._vigil is not None:
            self._vigil.traced_by_us()
        answer = gathering.finish(time.time())
        self._save(answer.attempt, gathering.request.id, answer.to_dict())
        if gathering.on_done is not None:
            gathering.on_done(answer)

    def _tell_stacks(self, answer: Answer) -> None:
        text = f"Stacks were taken for {answer.by}: {answer.finding.text}"
        self._write("stacks", text=text, id=answer.id, by=answer.by, taken_s=answer.taken_s)

    def _save(self, attempt: int, name: str, answer: Mapping[str, Any]) -> None:
        path = self._site.run.attempt(attempt).gang_stacks(name)
        try:
            write_json(path, answer)
        except OSError as error:
            self._write("warning", text=f"The stacks could not be written to {path}: {error}.")


def _facts(look: Look, answer: Answer) -> dict[str, Any]:
    finding = answer.finding
    return {
        "id": answer.id,
        "quiet_s": round(look.quiet_s, 1),
        "limit_s": look.limit_s,
        "groups": answer.groups(),
        "culprit": finding.culprit,
        "hint": finding.hint,
    }


def _hint(finding: Finding, *, counts_steps: bool) -> str:
    if finding.hint or counts_steps:
        return finding.hint
    return "If it was only quiet: report steps by gangline.progress(step), or raise --hang-timeout."


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - a tenth says something below


def _new_id(kind: str) -> str:
    """Tells people when it was; to the second, so nothing is sorted by it."""
    stamp: Sequence[int] = time.gmtime()[:6]
    return "{:04d}{:02d}{:02d}T{:02d}{:02d}{:02d}".format(*stamp) + f"-{kind}-{os.urandom(3).hex()}"
