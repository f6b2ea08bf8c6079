"""Why a rank ended: from what its node saw to a reason and one sentence. Pure; standard library only."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.agent.memory import Memory
from gangline.domain.phase import Reason

__all__ = ["RankEnd", "Verdict", "decide_port_taken", "decide_verdict", "exit_status", "format_bytes", "signal_name"]

_SIGNAL_BASE = 128
_NEARLY_FULL = 0.9
"""Share of a node's memory from which on SIGKILL is probably the kernel's."""
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_MEMORY_TYPES = re.compile(r"(^|\.)(MemoryError|OutOfMemoryError|XlaRuntimeError|ResourceExhaustedError)$")
_MEMORY_TEXT = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|RESOURCE_EXHAUSTED|^(?:\w+\.)*MemoryError\b"
    r"|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc",
    re.MULTILINE,
)
_ALWAYS_MEMORY = re.compile(r"(^|\.)(MemoryError|OutOfMemoryError|ResourceExhaustedError)$")
_STORAGE_TEXT = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system", re.IGNORECASE)
_RENDEZVOUS_TYPES = re.compile(r"(^|\.)(DistNetworkError|DistStoreError|RendezvousError|RendezvousTimeoutError)$")
_PORT_TAKEN = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """All that is known of a rank that failed."""

    rank: int
    node: int
    host: str
    exit_code: int | None
    signal: int | None
    error: Mapping[str, Any] | None = None
    """What the rank wrote of the exception that ended it: `type`, `message`, `traceback`."""
    log_tail: str = ""
    peak_rss_bytes: int | None = None
    kernel_oom_kills: int = 0
    """How often the kernel killed for memory in this node's control group while the attempt ran."""
    memory: Memory | None = None
    """Of the node, just after the rank had ended and its own memory was free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reason, and the sentence for people."""

    reason: Reason
    message: str


def decide_verdict(end: RankEnd) -> Verdict:
    """Classify the end of the first rank that failed."""
    who = f"Rank {end.rank} on node {end.node} ({end.host})"
    killer = _fatal_signal(end)
    if killer is not None:
        return _verdict_of_signal(end, who, killer)
    error_type, error_text = _error_of(end)
    said = ": ".join(filter(None, (error_type, _first_line(error_text))))
    told = f": {said}" if error_type else f" with exit code {end.exit_code}"
    reason = _reason_of_error(end, error_type, error_text)
    if reason is Reason.OUT_OF_MEMORY:
        return Verdict(reason=reason, message=f"{who} ran out of memory{told}{_peak(end)}.")
    if reason is Reason.STORAGE:
        return Verdict(reason=reason, message=f"{who} could not write{told}.")
    if reason is Reason.RENDEZVOUS_FAILED:
        return Verdict(reason=reason, message=f"{who} could not join the others{told}.")
    return Verdict(reason=reason, message=f"{who} failed{told}{_exit_hint(end)}.")


def decide_port_taken(end: RankEnd, port: int) -> bool:
    """Whether a rank failed because somebody else holds the port that the leader chose; never the fault of the run."""
    text = f"{_error_of(end)[1]}\n{end.log_tail}"
    return bool(_PORT_TAKEN.search(text)) and re.search(rf"(?<!\d){port}(?!\d)", text) is not None


def exit_status(exit_code: int | None, number: int | None) -> int:
    """As a shell reports it: the exit code, or 128 + signal."""
    return exit_code if exit_code is not None else _SIGNAL_BASE + (number or 0)


def signal_name(number: int | None) -> str | None:
    """`SIGKILL` for 9; None for None."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_bytes(size: int) -> str:
    """`1.5 GiB`."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _fatal_signal(end: RankEnd) -> int | None:
    """The signal that ended the rank, also when a wrapper reported it as 128 + n."""
    if end.signal is not None:
        return end.signal
    if end.exit_code == _SIGNAL_BASE + signal.SIGKILL and end.error is None:
        return int(signal.SIGKILL)
    return None


def _verdict_of_signal(end: RankEnd, who: str, number: int) -> Verdict:
    name = signal_name(number)
    if number != signal.SIGKILL:
        # SIGSEGV, SIGABRT, SIGBUS come from the rank's own code; SIGTERM comes from somebody's hand.
        by_hand = number in {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
        return Verdict(
            reason=Reason.KILLED if by_hand else Reason.USER_ERROR,
            message=f"{who} was {'ended' if by_hand else 'crashed'} by {name}.",
        )
    if end.kernel_oom_kills > 0:
        return Verdict(
            reason=Reason.OUT_OF_MEMORY,
            message=f"{who} was killed by SIGKILL (137) by the kernel because memory ran out{_peak(end)}.",
        )
    return Verdict(reason=Reason.KILLED, message=f"{who} was killed by SIGKILL (137){_peak(end)}; {_killer(end)}.")


def _killer(end: RankEnd) -> str:
    """Who may have sent SIGKILL. Memory is named only where the rank and what else runs there came near the limit."""
    if end.memory is not None and end.peak_rss_bytes is not None:
        used = end.memory.used_bytes + end.peak_rss_bytes
        if used >= _NEARLY_FULL * end.memory.limit_bytes:
            limit = format_bytes(end.memory.limit_bytes)
            return f"probably the kernel, since with it nearly all memory of the node was in use ({limit})"
    return "who sent it is not known: `kill -9`, the kernel, an operator"


def _reason_of_error(end: RankEnd, error_type: str, error_text: str) -> Reason:
    text = error_text if error_type else end.log_tail
    if _ALWAYS_MEMORY.search(error_type) or (_may_be_memory(error_type) and _MEMORY_TEXT.search(text)):
        return Reason.OUT_OF_MEMORY
    if error_type in {"OSError", "IOError", "PermissionError", "RuntimeError"} and _STORAGE_TEXT.search(error_text):
        return Reason.STORAGE
    if _RENDEZVOUS_TYPES.search(error_type):
        return Reason.RENDEZVOUS_FAILED
    return Reason.USER_ERROR


def _may_be_memory(error_type: str) -> bool:
    return error_type in {"", "RuntimeError"} or bool(_MEMORY_TYPES.search(error_type))


def _error_of(end: RankEnd) -> tuple[str, str]:
    error = end.error or {}
    return str(error.get("type") or ""), str(error.get("message") or "")


def _first_line(text: str, limit: int = 300) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = line.rstrip(".")
    return line if len(line) <= limit else f"{line[:limit]}…"


def _peak(end: RankEnd) -> str:
    return "" if end.peak_rss_bytes is None else f"; its peak memory was {format_bytes(end.peak_rss_bytes)}"


def _exit_hint(end: RankEnd) -> str:
    if end.error is not None:
        return ""
    if end.exit_code == _NOT_FOUND:
        return " (127: a program was not found)"
    if end.exit_code == _NOT_EXECUTABLE:
        return " (126: a program could not be executed)"
    return ""
