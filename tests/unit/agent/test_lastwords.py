from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.classify import RankEnd, decide_verdict
from gangline.agent.lastwords import (
    LastStep,
    decide_error,
    decide_printed,
    parse_record,
    read_error,
    read_last_step,
    read_left,
    read_tail,
)
from gangline.rundir.layout import RunDir

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: bad\n'


def test_what_a_rank_notes_as_it_leaves(tmp_path: Path) -> None:
    path = tmp_path / "left.json"
    assert read_left(path) is None
    path.write_text('{"time": 7.5, "code": 0, "traceback": ""}')
    assert read_left(path) == {"time": 7.5, "code": 0, "error": None}
    path.write_text(json.dumps({"time": 7.5, "code": 3, "traceback": TRACE}))
    error = {"type": "", "message": "", "traceback": TRACE, "causes": [], "time": 7.5}
    assert read_left(path) == {"time": 7.5, "code": 3, "error": error}
    for torn in ('{"time": 7.', "{}", '{"time": "x"}', "[]"):
        path.write_text(torn)
        assert read_left(path) is None


def test_a_record_of_pytorch() -> None:
    extra = {"py_callstack": TRACE, "timestamp": "1700000000"}
    found = parse_record(json.dumps({"message": {"message": "ValueError: bad", "extraInfo": extra}}))
    assert found == {"type": "ValueError", "message": "bad", "traceback": TRACE, "causes": [], "time": 1700000000.0}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"message": 7}', '{"message": {"message": ""}}'])
def test_a_record_that_says_nothing(text: str) -> None:
    assert parse_record(text) is None


def test_a_record_of_another_shape() -> None:
    found = parse_record('{"message": {"message": "it broke", "extraInfo": 3}}')
    assert found is not None
    assert (found["type"], found["message"]) == ("", "it broke") or found["message"] == "it broke"


@pytest.mark.parametrize(
    ("signal", "expected"), [(None, "ValueError"), (6, "ValueError"), (9, None), (11, None), (15, None), (2, None)]
)
def test_a_log_tells_where_no_file_does(signal: int | None, expected: str | None) -> None:
    found = decide_error(None, log=TRACE, signal=signal)
    assert (found or {}).get("type") == expected


def test_a_thread_that_ended_its_process_by_a_signal() -> None:
    found = decide_error(None, log=f"Exception in thread Thread-1:\n{TRACE}", signal=15)
    assert found is not None
    assert found["type"] == "ValueError"


def test_an_interrupt_is_no_error_of_its_own() -> None:
    assert decide_error(None, log=TRACE.replace("ValueError: bad", "KeyboardInterrupt"), signal=None) is None


def test_an_exception_counts_as_printed_where_nothing_came_after_it() -> None:
    found = decide_printed(TRACE, written=5.0, reported=4.0)
    assert found is not None
    assert (found["type"], found["time"]) == ("ValueError", 5.0)
    assert decide_printed(TRACE, written=5.0, reported=None) is not None
    assert decide_printed(TRACE, written=5.0, reported=6.0) is None  # it went on and made steps
    assert decide_printed(f"{TRACE}going on\n", written=5.0, reported=None) is None
    assert decide_printed("no traceback\n", written=5.0, reported=None) is None


def test_the_tail_of_a_log_may_end_before_its_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("abcdef")
    assert read_tail(tmp_path / "log", 3) == "def"
    assert read_tail(tmp_path / "log", 3, end=4) == "bcd"
    assert read_tail(tmp_path / "log", 30, end=4) == "abcd"


def test_the_traceback_of_another_process_becomes_the_cause() -> None:
    own = TRACE.replace("ValueError: bad", "subprocess.CalledProcessError: Command 'x' failed")
    written: dict[str, Any] = {
        "type": "subprocess.CalledProcessError",
        "message": "Command 'x' failed",
        "traceback": own,
    }
    found = decide_error(written, log=TRACE + own, signal=None)
    assert found is not None
    assert found["causes"] == [{"type": "ValueError", "message": "bad"}]
    assert found["traceback"].startswith(TRACE)
    inside = decide_error(
        {"type": "RuntimeError", "message": f"Caught ValueError in DataLoader worker process 0.\nOriginal {TRACE}"},
        log="",
        signal=None,
    )
    assert inside is not None
    assert inside["causes"] == [{"type": "ValueError", "message": "bad"}]


def test_files_come_before_the_log(tmp_path: Path) -> None:
    folder = RunDir(tmp_path).attempt(0)
    folder.path.mkdir(parents=True)
    said: list[str] = []

    def read() -> dict[str, Any] | None:
        return read_error(folder, 3, log=TRACE, signal=None, warn=said.append)

    assert (read() or {})["type"] == "ValueError"
    folder.recorded_error(3).write_text(json.dumps({"message": {"message": "KeyError: 'x'"}}))
    assert (read() or {})["type"] == "KeyError"
    folder.error(3).write_text(json.dumps({"type": "OSError", "message": "y"}))
    assert (read() or {})["type"] == "OSError"
    folder.error(3).write_text("{")
    assert (read() or {})["type"] == "KeyError"
    assert "rank 3" in said[0]


@pytest.mark.parametrize(
    ("exit_code", "files", "in_log"),
    [
        (5, [], True),
        (1, [], False),  # as of an interpreter of another kind, or of a shell around one
        (1, ["stacks"], True),  # `os._exit(1)`
        (1, ["stacks", "left.json"], False),  # `sys.exit(1)` of a program that reports its errors itself
        (134, [], False),
        (5, ["error.json"], False),
    ],
)
def test_an_exception_that_was_only_printed_is_no_proof(
    tmp_path: Path, exit_code: int, files: list[str], *, in_log: bool
) -> None:
    folder = RunDir(tmp_path).attempt(0)
    folder.path.mkdir(parents=True)
    for name in files:
        (folder.path / f"rank-00003.{name}").write_text(json.dumps({"type": "KeyError", "message": "x"}))
    error = read_error(folder, 3, log=TRACE, signal=None, exit_code=exit_code, warn=pytest.fail)
    assert error is not None
    assert error.get("in_log", False) is in_log


def test_how_far_a_rank_came(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    assert read_last_step(path, 0) == LastStep()
    lines = [
        {"k": "p", "a": 0, "s": 50, "n": 60},
        {"k": "m", "a": 1, "s": 7, "v": {}},
        "torn",
        {"k": "p", "a": 1, "s": 6, "n": 60},
        {"k": "h", "a": 1, "name": "eval", "on": True},
        {"k": "h", "a": 1, "name": "save", "on": True},
        {"k": "h", "a": 1, "name": "save", "on": False},
    ]
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    assert read_last_step(path, 1) == LastStep(step=6, total=60, phase="eval")
    assert read_last_step(path, 2) == LastStep()
    path.write_text("x" * 20_000 + "\n" + json.dumps({"k": "m", "a": 0, "s": 3, "v": {}}))
    assert read_last_step(path, 0) == LastStep(step=3)


def test_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abc\xffdef")
    assert read_tail(tmp_path / "log", 4) == "�def"
    assert read_tail(tmp_path / "none", 4) == ""


def test_an_error_that_was_got_over_is_none() -> None:
    disk_full = TRACE.replace("ValueError: bad", "OSError: [Errno 28] No space left on device")
    log = f"{disk_full}recovered, going on\n"
    assert decide_error(None, log=log, signal=None) is None
    assert decide_error(None, log=log, signal=6) is None
    end = RankEnd(rank=0, node=0, host="h", exit_code=3, signal=None, log_tail=log)
    verdict = decide_verdict(end)
    assert verdict.signature != "disk_full"
    assert 'failed with exit code 3; its last line is "recovered, going on".' in verdict.message


@pytest.mark.parametrize("odd", [chr(0xD800), chr(0xDCFF)])
def test_an_exception_that_holds_half_a_character_can_be_told(tmp_path: Path, odd: str) -> None:
    folder = RunDir(tmp_path).attempt(0)
    causes = [{"type": "OSError", "message": f"bad {odd}"}]
    written = {"type": "ValueError", "message": f"bad {odd}", "traceback": f"x{odd}", "causes": causes, "time": 1.5}
    folder.error(0).parent.mkdir(parents=True)
    folder.error(0).write_text(json.dumps(written))
    found = read_error(folder, 0, log="", signal=None, warn=pytest.fail)
    assert found is not None
    json.dumps(found, ensure_ascii=False).encode()
    assert found["message"] == ascii(f"bad {odd}")[1:-1]
    assert found["causes"][0]["message"] == found["message"]
    assert found["time"] == 1.5


TORCHRUN = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_02:57:31
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 12534)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 12534
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_02:57:31
  host      : localhost
  rank      : 3 (local_rank: 3)
  exitcode  : {code}
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("2 (pid: 12532) ", "train.py FAILED: its rank 3 exited with code 2"),
        ("-9 (pid: 12532)  (SIGKILL)", "train.py FAILED: its rank 3 was ended by SIGKILL"),
    ],
)
def test_the_table_of_torchrun_becomes_one_line(code: str, told: str) -> None:
    written = {"type": "x.ChildFailedError", "message": TORCHRUN.format(code=code), "traceback": "", "causes": []}
    found = decide_error(written, log="train.py: error: unrecognized arguments: --dry\n", signal=None)
    assert found is not None
    assert found["message"] == told
