"""The log of a task, and a store that does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from metaflow_extensions.gangline.plugins import lines


@pytest.fixture(autouse=True)
def no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_await_reader", lambda: None)


def test_what_was_passed_on_is_stored_when_the_log_is_closed():
    stored: list[bytes] = []
    log = lines.TaskLog(lambda path: stored.append(path.read_bytes()), where="there")
    log.take(0, "one\ntwo")
    log.say("told")
    log.close()
    found = [line.rpartition(b"]")[2] for line in stored[-1].splitlines()]
    assert [line.strip() for line in found] == [b"one", b"told", b"two"]


def test_a_store_that_does_not_answer_holds_up_neither_lines_nor_the_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(lines, "_CLOSE_PATIENCE_S", 0.0)
    entered, let_go = threading.Event(), threading.Event()

    def hang(_path: Path) -> None:
        entered.set()
        let_go.wait()

    log = lines.TaskLog(hang, where="gangline logs r-1")
    log.take(0, "one\n")
    assert entered.wait(30)
    log.take(0, "two\n")
    log.close()
    out, err = capfd.readouterr()
    assert "[rank 0] two" in out
    assert "its store has not answered" in err
    assert "gangline logs r-1" in err
    let_go.set()
