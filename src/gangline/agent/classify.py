"""Why a rank ended: from what its node saw to a reason, one sentence and a hint. Pure; standard library only.

What failures look like is in the table of `gangline.domain.signature_table`; here it is asked, and put into words.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gangline.agent.memory import Memory, format_bytes
from gangline.agent.watch.frames import parse_traceback
from gangline.agent.watch.places import decide_place
from gangline.domain.phase import Reason
from gangline.domain.signals import signal_name
from gangline.domain.signature_table import SIGNATURES
from gangline.domain.signatures import Evidence, Match, Signature, find_signature
from gangline.domain.traces import after_trace, find_place

__all__ = [
    "RankEnd",
    "Verdict",
    "decide_port_taken",
    "decide_verdict",
    "exit_status",
    "is_consequence",
    "is_timeout",
    "last_line",
]

_SIGNAL_BASE = 128
_MAY_BE = " with exit code {code}; the last exception in its log may or may not be why"
_SILENT = ", and its log is empty"
_NEARLY_FULL = 0.9
"""Share of a node's memory from which on SIGKILL is probably the kernel's."""
_PORT_TAKEN = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
_PLACE = re.compile(r"^\[[^\]\s]+\.(?:cc|cpp|h|cu):\d+\] | This is typically caused by a remote worker crashing\..*")
"""Where in its own code a library was: `[../third_party/gloo/gloo/transport/tcp/pair.cc:547] `; what gloo adds."""
_UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f]|\ufffd")
"""Of a line: what moves a cursor, colours, and bytes that are no text."""
_CARRIER = re.compile(r"(^|\.)(ChildFailedError|CalledProcessError)$")
_IN_WORKER = re.compile(r"Caught \S+ in DataLoader worker process")
"""Exceptions that only hand on another one, which is then the headline."""
_OF_CHILD = re.compile(r"multiprocessing[/\\](?:connection|reductions?|resource_sharer)\.py")
_SAYS_CHILD = re.compile(
    r"DataLoader worker .* is killed by signal|exited unexpectedly|terminated abruptly|"
    "unable to open shared memory object"
)
_LOADER = re.compile(r"torch[/\\]utils[/\\]data[/\\]")
_KILLED = "killed"
_BY_HAND = "ended_by_hand"
_TIMEOUTS = frozenset({"collective_timeout", "rendezvous_timeout"})
_WITH_PEAK = frozenset({Reason.OUT_OF_MEMORY, Reason.KILLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """All that is known of a rank that failed."""

    rank: int
    node: int
    host: str
    exit_code: int | None
    signal: int | None
    error: Mapping[str, Any] | None = None
    """The exception that ended it: `type`, `message`, `traceback`, `causes`; with `in_log`: was printed."""
    log_tail: str = ""
    peak_rss_bytes: int | None = None
    kernel_oom_kills: int = 0
    """How often the kernel killed for memory in this node's control group while the attempt ran."""
    memory: Memory | None = None
    """Of the node, just after the rank had ended and its own memory was free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reason, the sentence for people, and what they can do."""

    reason: Reason
    message: str
    signature: str | None = None
    """Row of the table of signatures; None: none of them fits."""
    hint: str = ""


def decide_verdict(end: RankEnd, *, own: Sequence[Signature] = (), facts: Mapping[str, str] | None = None) -> Verdict:
    """Classify the end of the first rank that failed.

    Args:
        own: signatures of the spec, which are looked for first.
        facts: words for the hints: `run`, `python`.
    """
    who = f"Rank {end.rank} on node {end.node} ({end.host})"
    known = {"signal": signal_name(end.signal) or "", **(facts or {})}
    found = find_signature(_evidence(end), (*own, *SIGNATURES))
    in_log = _MAY_BE.format(code=end.exit_code) if (end.error or {}).get("in_log") else ""
    if found is None:
        message = f"{who} failed{in_log}{_told(end, None)}.{_meanwhile(end)}"
        return Verdict(reason=Reason.USER_ERROR, message=message)
    signature = found.signature
    sentence = f"failed{in_log} (it {found.sentence(known)})" if in_log else found.sentence(known)
    parts = [who, " ", sentence, _told(end, found)]
    if signature.reason in _WITH_PEAK and signature.id != _BY_HAND:
        parts.append(_peak(end))
    if signature.id == _KILLED:
        parts.append(f"; {_killer(end)}")
    message = f"{''.join(parts)}.{'' if signature.reason is Reason.OUT_OF_MEMORY else _meanwhile(end)}"
    return Verdict(reason=signature.reason, message=message, signature=signature.id, hint=found.hint(known))


def is_consequence(end: RankEnd) -> bool:
    """Whether the exception of a rank says that it lost or missed another one: no blame, where another one failed."""
    found = _find_raised(end)
    return found is not None and found.consequence


def is_timeout(end: RankEnd) -> bool:
    """Whether the exception of a rank says that it waited for the others longer than it was to, also to meet them."""
    found = _find_raised(end)
    return found is not None and found.id in _TIMEOUTS


def decide_port_taken(end: RankEnd, port: int) -> bool:
    """Whether a rank failed because somebody else holds the port that the leader chose; never the fault of the run."""
    text = f"{_error_of(end)[1]}\n{end.log_tail}"
    return bool(_PORT_TAKEN.search(text)) and re.search(rf"(?<!\d){port}(?!\d)", text) is not None


def last_line(log: str) -> str:
    """What a rank printed last, as the end of a sentence; "" where it printed nothing."""
    line = _first_line("\n".join(reversed(log.splitlines())), 160)
    return f'; its last line is "{line}"' if line else ""


def exit_status(exit_code: int | None, number: int | None) -> int:
    """As a shell reports it: the exit code, or 128 + signal."""
    return exit_code if exit_code is not None else _SIGNAL_BASE + (number or 0)


def _find_raised(end: RankEnd) -> Signature | None:
    kind, message, _ = _error_of(end)
    if not kind and not message:
        return None
    return _find_row(Evidence(error_type=kind, message=message, trace=_trace_of(end), child=_find_child(end)))


@lru_cache(maxsize=512)
def _find_row(evidence: Evidence) -> Signature | None:
    found = find_signature(evidence, SIGNATURES)
    return None if found is None else found.signature


def _evidence(end: RankEnd) -> Evidence:
    """An exception says more than the code or signal by which its process went afterwards."""
    kind, message, causes = _error_of(end)
    raised = bool(kind or message)
    return Evidence(
        error_type=kind,
        message=message,
        causes=causes,
        trace=_trace_of(end),
        child=_find_child(end),
        log=end.log_tail if raised else after_trace(end.log_tail) or end.log_tail,
        exit_code=None if raised else end.exit_code,
        signal=None if raised else end.signal,
        killed_for_memory=end.kernel_oom_kills > 0,
    )


def _find_child(end: RankEnd) -> str:
    """How a process of the rank ended, where the exception comes from that; "" where it does not, or nobody knows."""
    children, trace = (end.error or {}).get("children"), _trace_of(end)
    if not children or not (_OF_CHILD.search(trace) or _SAYS_CHILD.search(_error_of(end)[1])):
        return ""
    child = max(children, key=_weigh_child)
    code = int(child["exit_code"])
    told = f"exit code {code}" if code > 0 else signal_name(-code)
    return f"{'data loader worker' if _LOADER.search(trace) else 'process'} {child['pid']} {told}"


def _weigh_child(child: Mapping[str, Any]) -> int:
    """One that crashed or was killed comes first; those that are told to end, as pools do with the rest, last."""
    code = int(child["exit_code"])
    return 1 if code > 0 else 0 if -code == signal.SIGTERM else 2


def _told(end: RankEnd, found: Match | None) -> str:
    """What follows the sentence: the exception, else the exit code where the sentence has not said it."""
    kind, message, causes = _error_of(end)
    if kind or message:
        said = _say(kind, message)
        inner = found.error if found is not None else None
        if inner is None and causes and (_CARRIER.search(kind) or _IN_WORKER.match(message)):
            inner = causes[0]
        if inner is not None:
            said = f"{_say(*inner)} ({'in a worker process' if _IN_WORKER.match(message) else f'then {kind}'})"
        return f": {said}" if said else ""
    if end.signal is not None:
        return f" by {signal_name(end.signal)}" if found is None else _crash_place(end)
    if found is not None and found.words.get("said"):
        return f": {found.words['said']}"
    if found is not None and any(pattern.exit_codes for pattern in found.signature.patterns):
        return _crash_place(end)
    place = _exit_place(end)
    return f" with exit code {end.exit_code}{place}{last_line(end.log_tail) or ('' if place else _SILENT)}"


def _trace_of(end: RankEnd) -> str:
    return str((end.error or {}).get("traceback") or "")


def _crash_place(end: RankEnd) -> str:
    """Where in the user's code compiled code was called that crashed, as far as that is known."""
    thread = parse_traceback(_trace_of(end))
    told = decide_place([thread]).told if thread is not None else ""
    return f" {told}" if told else ""


def _exit_place(end: RankEnd) -> str:
    """Where in the user's own code it called `sys.exit`, as far as that is known."""
    place = find_place(_trace_of(end))
    return f", by sys.exit ({place})" if place else ""


def _say(kind: str, message: str) -> str:
    return ": ".join(filter(None, (kind, _first_line(message))))


def _killer(end: RankEnd) -> str:
    """Who may have sent SIGKILL. Memory is named only where the rank and what else runs there came near the limit."""
    if end.memory is not None and end.peak_rss_bytes is not None:
        used = end.memory.used_bytes + end.peak_rss_bytes
        if used >= _NEARLY_FULL * end.memory.limit_bytes:
            limit = format_bytes(end.memory.limit_bytes)
            return f"probably the kernel, since with it nearly all memory of the node was in use ({limit})"
    return "who sent it is not known: `kill -9`, the kernel, an operator"


def _error_of(end: RankEnd) -> tuple[str, str, list[tuple[str, str]]]:
    error = end.error or {}
    listed = error.get("causes")
    causes = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, Sequence) else []
    return (
        str(error.get("type") or ""),
        str(error.get("message") or ""),
        [(str(one.get("type") or ""), str(one.get("message") or "")) for one in causes],
    )


def _first_line(text: str, limit: int = 300) -> str:
    """The first line that says something; one that ends with a colon goes on with the next."""
    lines = [line for line in (_UNSEEN.sub("", line).strip() for line in text.splitlines()) if line]
    said = _PLACE.sub("", lines[0]) if lines else ""
    if said.endswith(":") and len(lines) > 1:
        said = f"{said} {lines[1]}"
    said = said.rstrip(".:")
    return said if len(said) <= limit else f"{said[:limit].rstrip()}…"


def _peak(end: RankEnd) -> str:
    if end.peak_rss_bytes is None:
        return ""
    limit = end.memory.limit_bytes if end.memory is not None and end.kernel_oom_kills else None
    there = f", and all on its node may use {format_bytes(limit)}" if limit is not None else ""
    return f"; its peak memory was {format_bytes(end.peak_rss_bytes)}{there}"


def _meanwhile(end: RankEnd) -> str:
    """Of a rank that does not say so: a process beside or below it was killed for memory."""
    return " The kernel has killed for memory there meanwhile, which may be why." if end.kernel_oom_kills else ""
