"""What `faulthandler` wrote of a crash, as a traceback of the thread that crashed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.classify import RankEnd, decide_verdict
from gangline.agent.crashes import crash_signal, find_crash, with_crash
from gangline.agent.lastwords import read_error
from gangline.domain.traces import find_place, fold_trace
from gangline.rundir.layout import AttemptDir, RunDir

EARLIER = """
# 2026-12-01T10:00:00+0000 asked by alice
Thread 0x00007f1c0a7fe740 (most recent call first):
  File "/run/code/train.py", line 90 in <module>
"""
CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f1bd97fa6c0 [loader] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f1c0a7fe740 (most recent call first):
  File "/env/lib/python3.11/site-packages/numpy/core/_methods.py", line 49 in _sum
  File "/run/code/train.py", line 41 in step
  File "/run/code/train.py", line 90 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""
TERMINATE = "terminate called after throwing an instance of 'c10::Error'\n  what():  boom\n"


def no_line(_file: str, _line: int) -> str:
    return ""


def test_the_thread_that_crashed_is_shown_as_a_traceback():
    found = find_crash(EARLIER + CRASH, signal.SIGSEGV, read_line=lambda _file, line: f"line_{line}()")
    assert found == (
        "Stack of the thread that crashed (most recent call last):\n"
        '  File "/run/code/train.py", line 90, in <module>\n    line_90()\n'
        '  File "/run/code/train.py", line 41, in step\n    line_41()\n'
        '  File "/env/lib/python3.11/site-packages/numpy/core/_methods.py", line 49, in _sum\n'
    )
    assert find_place(found) == "train.py:41"
    assert fold_trace(found)[-1] == "  (1 frame of numpy)"


def test_a_thread_without_python_leaves_where_the_main_thread_was():
    other = CRASH.replace("Current thread 0x00007f1c0a7fe740", "Thread 0x00007f1c0a7fe740")
    text = other.replace(
        "error: Segmentation fault\n", "error: Aborted\n\nCurrent thread 0x07 (most recent call first):"
    )
    found = find_crash(
        text.replace("first):\n\nThread", "first):\n  <no Python frame>\n\nThread"), 6, read_line=no_line
    )
    assert found.startswith("Stack of the main thread (most recent call last):\n")
    assert find_place(found) == "train.py:41"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGBUS, "Bus error"),
        (signal.SIGFPE, "Floating-point exception"),
        (signal.SIGFPE, "Floating point exception"),
        (signal.SIGILL, "Illegal instruction"),
        (signal.SIGABRT, "Aborted"),
        (signal.SIGABRT, "none_dealloc: deallocating None"),
    ],
)
def test_each_signal_is_known_by_its_words(number: int, says: str):
    assert find_crash(CRASH.replace("Segmentation fault", says), number, read_line=no_line)


@pytest.mark.parametrize("text", ["", EARLIER, CRASH.replace("Segmentation fault", "Bus error"), CRASH[:60]])
def test_of_another_crash_or_none_nothing_is_told(text: str):
    assert find_crash(text, signal.SIGSEGV, read_line=no_line) == ""


def test_the_last_crash_counts():
    later = CRASH.replace("line 41", "line 42")
    assert "line 42" in find_crash(CRASH + later, signal.SIGSEGV, read_line=no_line)


@pytest.mark.parametrize(
    ("exit_code", "number", "expected"),
    [(None, 11, 11), (139, None, 11), (None, 9, None), (1, None, None), (0, 0, None)],
)
def test_a_shell_around_a_program_reports_its_crash_by_a_code(exit_code: Any, number: Any, expected: Any):
    assert crash_signal(exit_code, number) == expected


class Rank:
    """What one rank left."""

    def __init__(self, folder: Path) -> None:
        self.folder: AttemptDir = RunDir(folder).attempt(0)
        self.folder.path.mkdir(parents=True)

    def verdict(self, *, stacks: str = "", log: str = "", **end: Any) -> str:
        self.folder.stacks(3).write_text(stacks)
        known = {"exit_code": None, "signal": None, **end}
        error = read_error(self.folder, 3, log=log, warn=pytest.fail, **known)
        return decide_verdict(RankEnd(rank=3, node=0, host="h", error=error, log_tail=log, **known)).message


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_a_crash_is_told_with_the_line_that_called_what_crashed(rank: Rank):
    expected = "Rank 3 on node 0 (h) crashed (SIGSEGV) at train.py:41."
    assert rank.verdict(stacks=CRASH, signal=11) == expected
    assert rank.verdict(log=CRASH, signal=11) == expected
    assert rank.verdict(stacks=CRASH, exit_code=139) == expected
    assert rank.verdict(signal=11) == "Rank 3 on node 0 (h) crashed (SIGSEGV)."


def test_what_cpp_says_stays_the_headline_of_an_abort(rank: Rank):
    aborted = CRASH.replace("Segmentation fault", "Aborted")
    assert "c10::Error: boom" in rank.verdict(stacks=aborted, log=TERMINATE, signal=6)
    error = read_error(rank.folder, 3, log=TERMINATE, signal=6, warn=pytest.fail)
    assert error is not None
    assert (error["type"], find_place(error["traceback"])) == ("c10::Error", "train.py:41")


def test_an_exception_that_is_known_keeps_its_own_place(rank: Rank):
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: bad\n'
    rank.folder.stacks(3).write_text(CRASH.replace("Segmentation fault", "Aborted"))
    error = read_error(rank.folder, 3, log=trace, signal=6, warn=pytest.fail)
    assert error is not None
    assert error["traceback"] == trace


def test_an_error_without_a_type_says_where_and_no_more():
    assert with_crash(None, "S") == {"type": "", "message": "", "causes": [], "traceback": "S"}
