"""The ends of logs are read in the agent's loop: no text of a rank may take it more than a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gangline.agent.classify import RankEnd, decide_port_taken, decide_verdict
from gangline.agent.lastwords import decide_error, parse_record
from gangline.domain.traces import fold_trace

SIZE = 32_768
HEADER = "Traceback (most recent call last):\n"
PIECES = [
    *("\n", " ", "\t", "\r", " \n", "\n ", "\x0b", "a", "a.", "|", "| ", "-", "+-", "7", "7.", "\\", "/"),
    *("File ", "Error: ", "[rank1]:", "A.<locals>.", HEADER, HEADER + " \n", "ValueError: x\n", "(a."),
    *("terminate called after throwing an instance of 'a'\n", "nan ", "loss ", "task ", "ibv_", "Timed out"),
    *("NET/OFI ", "EFA ", "fork: ", "DataLoader worker ", "Broken pipe ", "TCPStore ", "before the ", "/lib/python3"),
    *("/site-packages/a", "Xid ", "nrt_init", "No module named '", "Caught ", "error: ", "ABORTED: "),
    *("\nWatchdog caught collective operation timeout", "No space left on device ", "unable to open file "),
]


def look(tail: str) -> None:
    """Everything that is done with the end of a log, and with a message of that text."""
    errors: list[Any] = [
        decide_error(None, log=tail, signal=None),
        decide_error(
            {"type": "subprocess.CalledProcessError", "message": tail, "traceback": tail}, log=tail, signal=None
        ),
        {"type": "OSError", "message": tail},
        None,
    ]
    for error in errors:
        end = RankEnd(rank=0, node=0, host="h", exit_code=2, signal=None, error=error, log_tail=tail)
        decide_verdict(end)
        decide_port_taken(end, 20001)
    fold_trace(HEADER + tail)
    parse_record('{"message": "' + "a." * 1000 + '!"}')


def seconds(work: Callable[[], None]) -> float:
    """Time of the processor, so that a busy machine does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.fixture(scope="module")
def plain_s() -> float:
    text = "".join(f"step {number} of 100000 took 0.1 s\n" for number in range(2000))
    return seconds(lambda: look(text[:SIZE]))


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_the_time_of_thousands_of_plain_ones(plain_s: float, piece: str) -> None:
    body = (piece * SIZE)[:SIZE]
    bound_s = 0.15 + 20 * plain_s
    for tail in (body, HEADER + '  File "a", line 1\n' + body, body + "x\n"):
        assert any(seconds(lambda tail=tail: look(tail)) < bound_s for _ in range(3))  # type: ignore[misc]
