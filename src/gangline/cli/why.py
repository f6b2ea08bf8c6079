"""Why a run failed, as a block of lines: the first failing rank, its exception, its log, what the others did.

Pure: from a RunDetail to lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from gangline.cli.describe import describe_exit, describe_failure, has_begun
from gangline.cli.logtext import LineAssembler
from gangline.cli.prose import fold_message, lay_out_message
from gangline.cli.terminal import Terminal
from gangline.cli.text import cell_width, join_words, visible, wrap
from gangline.domain.hints import hint_for
from gangline.domain.phase import TERMINAL, Phase, Reason
from gangline.domain.traces import fold_trace
from gangline.wire.views import AttemptView, FailureView, RankView, RunDetail

__all__ = ["LEAST_QUOTED", "failed_attempt", "render_hint", "render_why"]

_QUOTED_LINES = 20
LEAST_QUOTED = 7
"""Lines that are quoted of trace and log, however little room there is."""
_LOG_SHARE = 0.35
"""Of the quoted lines, for the log where there is a trace as well."""
_LEAST_MESSAGE, _MOST_MESSAGE = 2, 8
"""Lines of an exception, however little room there is, and where there is enough: many say in the third what to do."""
_FACT_LINES = 3
_MOST_CAUSES = 2
_LONGEST_LINE = 4
"""In widths of a page: of what is quoted. All of it is in the log, and in what `--json` prints."""
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What PyTorch puts before each line of a traceback that it prints."""
_IN_LIBRARY = re.compile(
    r"\[[^\]\s]+\.(?:cc|cpp|h|cu):\d+\] | This is typically caused by a remote worker crashing\.[^\n]*"
)
"""Where in its own code a library was: `[../third_party/gloo/gloo/transport/tcp/pair.cc:547] `; what gloo adds."""
_ADDRESS = re.compile(r" \[[0-9a-fA-F.:]+\]:\d+")
"""Of a peer: each rank has another one."""
_ERROR_CHARS = 70
"""Of the exception of a rank that is not to blame."""
_LEFT = "had ended with exit code 0"
_MOST_GROUPS = 3
_MOST_RANGES = 8


def failed_attempt(run: RunDetail) -> AttemptView | None:
    """The newest attempt in which a rank failed, unless the run got over it and succeeded."""
    if run["phase"] == Phase.SUCCEEDED.value:
        return None
    return next((attempt for attempt in reversed(run["attempts"]) if attempt["first_failure"]), None)


def render_why(run: RunDetail, terminal: Terminal, *, room: int = _QUOTED_LINES) -> list[str]:
    """The block, without its title; empty where no rank has failed.

    Args:
        room: lines for what is quoted of trace and log.
    """
    attempt = failed_attempt(run)
    failure = attempt["first_failure"] if attempt is not None else None
    if attempt is None or failure is None:
        return []
    trace, log = _cut_trace(failure), _cut_log(failure)
    room = max(LEAST_QUOTED, room)
    message = _render_message(failure, terminal, most=min(_MOST_MESSAGE, _LEAST_MESSAGE + room - LEAST_QUOTED))
    room -= max(0, len(message) - _LEAST_MESSAGE)
    log = log[-max(round(room * _LOG_SHARE), room - len(trace)) :]
    trace = trace[-max(0, room - len(log)) :]
    return [
        terminal.paint(visible(describe_failure(failure, attempt["started"])), "red"),
        *(
            [terminal.paint("the last exception in its log, which may or may not be why:", dim=True)]
            if failure["error_in_log"]
            else []
        ),
        *message,
        *_render_causes(failure, terminal),
        *_quote(trace, terminal),
        *([terminal.paint("end of its log:", dim=True)] if log else []),
        *_quote(log, terminal),
        *_facts({"others": _describe_others(attempt, failure), "then": _describe_then(run, attempt)}, terminal),
    ]


def render_hint(run: RunDetail, terminal: Terminal) -> list[str]:
    """What to do about it: of the attempt that ended the run, or of the newest that failed while it lives."""
    if run["phase"] == Phase.SUCCEEDED.value:
        return []
    attempt = run["attempts"][-1] if run["attempts"] else None
    if (attempt is None or not attempt["hint"]) and run["phase"] not in {str(phase) for phase in TERMINAL}:
        attempt = failed_attempt(run)
    hint = attempt["hint"] if attempt is not None else ""
    if not hint and run["phase"] == Phase.FAILED.value and run["reason"] in {str(reason) for reason in Reason}:
        hint = hint_for(Reason(run["reason"]), run=run["id"])
    return wrap(fold_message(hint), terminal.page - 2)


def _render_message(failure: FailureView, terminal: Terminal, *, most: int) -> list[str]:
    kind = failure["error_type"]
    if not kind:
        return []
    said = _IN_LIBRARY.sub("", failure["error_message"] or "")
    return [
        terminal.paint(line, bold=True)
        for line in lay_out_message(said, terminal.page - 2, most=most, lead=visible(kind))
    ]


def _render_causes(failure: FailureView, terminal: Terminal) -> list[str]:
    told = [_say(str(cause.get("type")), str(cause.get("message") or "")) for cause in failure["causes"]]
    return [terminal.clip(f"from {said}", terminal.page - 2) for said in told[:_MOST_CAUSES]]


def _say(kind: str, message: str | None) -> str:
    text = _IN_LIBRARY.sub("", fold_message(message or ""))
    return f"{visible(kind)}{': ' if text else ''}{text}"


def _cut_trace(failure: FailureView) -> list[str]:
    """The user's part of the trace, without its last lines, which stand above already."""
    lines = fold_trace(failure["traceback"] or "")
    kind = failure["error_type"]
    ends = [number for number, line in enumerate(lines) if kind and line.startswith(kind)]
    return lines[: ends[-1]] if ends else lines


def _cut_log(failure: FailureView) -> list[str]:
    """The end of the log as `gangline logs` prints it, without the traceback that stands above."""
    log, trace = _PREFIX.sub("", failure["log_tail"].replace("\r\n", "\n")), (failure["traceback"] or "").strip()
    place = log.rfind(trace) if trace else -1
    if place >= 0:
        log = log[:place] + log[place + len(trace) :]
    assembler = LineAssembler()
    pieces = assembler.feed(log, behind_bytes=sys.maxsize) + assembler.finish()
    return [line for piece in pieces for line in piece.text.split("\n") if line.strip()]


def _describe_others(attempt: AttemptView, failure: FailureView) -> str:
    """`ranks 0-2 ended by Gangline, waiting in all_reduce (train.py:41), at step 119; rank 3 had ended with …`."""
    groups: dict[str, list[RankView]] = {}
    for rank in attempt["ranks"]:
        if rank["rank"] != failure["rank"]:
            groups.setdefault(_describe_end(rank), []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: (group[0] != _LEFT, -len(group[1])))
    parts = [f"{_name_ranks(ranks)} {how}{_describe_place(ranks)}" for how, ranks in ordered[:_MOST_GROUPS]]
    more = sum(len(ranks) for _, ranks in ordered[_MOST_GROUPS:])
    return "; ".join([*parts, *([f"{more} more in other ways"] if more else [])])


def _describe_end(rank: RankView) -> str:
    if rank["ended"] is None:
        return "did not end yet" if rank["pid"] else "never started"
    if rank["ended_by"] == "platform":
        return f"ended by Gangline{', ' if rank['place'] else ''}{visible(rank['place'] or '')}"
    if rank["exit_code"] == 0:
        return _LEFT
    said = _IN_LIBRARY.sub("", fold_message(rank["error"] or describe_exit(rank["exit_code"], None, rank["signal"])))
    said = _ADDRESS.sub("", said)
    at = f", {visible(rank['place'])}" if rank["place"] else ""
    return f"failed too{at}: {said if len(said) <= _ERROR_CHARS else f'{said[:_ERROR_CHARS].rstrip()}…'}"


def _describe_place(ranks: Sequence[RankView]) -> str:
    """How far they had come: `, at step 119`, `, at steps 118 to 120 in eval`."""
    steps = sorted({rank["step"] for rank in ranks if rank["step"] is not None})
    phases = sorted({rank["phase"] for rank in ranks if rank["phase"]})
    at = f", at step {steps[0]}" if len(steps) == 1 else f", at steps {steps[0]} to {steps[-1]}" if steps else ""
    return at + (f", in {join_words([visible(phase) for phase in phases])}" if phases else "")


def _describe_then(run: RunDetail, attempt: AttemptView) -> str:
    """What was done about it: `restart 1 of 3 (infrastructure); attempt 1 started from step 400`."""
    following = next((one for one in run["attempts"] if one["number"] == attempt["number"] + 1), None)
    done = [fold_message(attempt["restart_message"])] if attempt["restart_message"] else []
    if following is not None:
        step = following["resume_step"]
        begun = f"from step {step}" if step is not None else "from the start" if not following["resume"] else "again"
        how = f"started {begun}" if has_begun(following) else "did not begin"
        done.append(f"attempt {following['number']} {how}")
    elif attempt["outcome"] is None:
        done.append("the other ranks are being ended")
    return "; ".join(done)


def _name_ranks(ranks: Sequence[RankView]) -> str:
    numbers = sorted(rank["rank"] for rank in ranks)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [f"{low}" if low == high else f"{low}-{high}" for low, high in ranges]
    if len(shown) > _MOST_RANGES:
        return f"{len(numbers)} ranks"
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {join_words(shown)}"


def _facts(facts: Mapping[str, str], terminal: Terminal) -> list[str]:
    """Each fact beside its label."""
    lines = []
    for label, text in facts.items():
        found = wrap(text, terminal.page - 10)
        if len(found) > _FACT_LINES:
            found = [*found[: _FACT_LINES - 1], f"{found[_FACT_LINES - 1]} {terminal.mark}"]
        names = [label] + [""] * len(found)
        lines += [f"{terminal.paint(f'{name:<8}', dim=True)}{line}" for name, line in zip(names, found, strict=False)]
    return lines


def _quote(lines: Sequence[str], terminal: Terminal) -> list[str]:
    """Lines, each marked as quoted and cut to the terminal, or where that is a file, to what somebody may read."""
    bar = "│ " if terminal.unicode else "| "
    shown = [visible(line, multiline=True).expandtabs(4) for line in lines]
    width = min(terminal.width, _LONGEST_LINE * terminal.page) - cell_width(bar) - 2
    return [terminal.paint(bar, dim=True) + terminal.clip(line, width) for line in shown]
