"""What a node reads of its ranks, and what it is asked."""

from __future__ import annotations

import json

import pytest

from gangline.agent.control import StacksRequest, parse_request
from gangline.agent.ranktree import ProcessUse
from gangline.agent.watch.sampling import Reports, decide_standing, parse_reports
from gangline.agent.watch.taking import parse_caught


def told(*lines: dict[str, object], attempt: int = 0) -> Reports:
    found = Reports(None, attempt)
    parse_reports(found, b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
    return found


def line(kind: str, *, attempt: int = 0, when: float = 1.5, **keys: object) -> dict[str, object]:
    return {"k": kind, "a": attempt, "t": when, **keys}


def test_steps_count_when_they_change():
    found = told(
        line("p", s=1, n=None),
        line("m", s=1, v={"loss": 1.0}),
        line("m", s=2, v={"loss": 1.0}),
        line("m", s=None, v={"memory": 1.0}),
        line("m", s=2, v={"again": 1.0}),
        line("p", s=-1, n=None),
    )
    assert (found.steps, found.step) == (3, -1)


def test_the_last_step_is_known_where_the_total_is():
    assert told(line("p", s=10, n=10)).finished
    assert not told(line("p", s=9, n=10)).finished
    assert not told(line("p", s=9, n=None)).finished
    assert not told(line("p", s=10, n=10), line("p", s=11, n=20)).finished
    assert told(line("p", s=10, n=10), line("m", s=10, v={"loss": 1.0})).finished


def test_other_attempts_and_garbage_are_passed_over():
    found = Reports(None, 1)
    data = json.dumps(line("p", s=1, n=None), separators=(",", ":")).encode()
    parse_reports(found, b"\xff\xfe\n{}\n" + data + b'\n{"k":"h","a":1,"t":1.0,"name":\n')
    assert found.steps == 0


def test_phases_nest_are_measured_and_may_name_their_limit():
    found = told(
        line("h", when=10.0, name="evaluating", on=True, l=60),
        line("h", when=11.0, name="saving", on=True),
    )
    assert [name for name, _, _ in found.open] == ["evaluating", "saving"]
    assert found.open[0][2] == 60.0
    found = told(
        line("h", when=10.0, name="saving", on=True),
        line("h", when=14.0, name="saving", on=False),
        line("h", when=20.0, name="saving", on=True),
        line("h", when=21.0, name="saving", on=False),
        line("h", when=21.0, name="never begun", on=False),
        line("c", s=5, path="/x", bytes=1, files=1, seconds=1.0),
    )
    assert (found.open, found.longest_s, found.marks) == ([], {"saving": 4.0}, 6)


@pytest.mark.parametrize(
    ("letters", "standing"),
    [
        ({1: "S", 2: "R"}, ("runs", 1)),
        ({1: "S", 2: "T"}, ("stopped", 2)),
        ({1: "t", 2: "S"}, ("traced", 1)),
        ({1: "D", 2: "S"}, ("blocked", 1)),
        ({1: "S", 2: "D"}, ("runs", 1)),  # a worker that reads is at work
        ({1: "D", 2: "T"}, ("stopped", 2)),
        ({1: ""}, ("runs", 1)),
    ],
)
def test_what_is_stopped_holds_a_rank_up(letters, standing):
    assert decide_standing(1, {pid: ProcessUse(letter=letter) for pid, letter in letters.items()}) == standing


@pytest.mark.parametrize(("mask", "caught"), [("2000000000000000", True), ("0000000180004002", False)])
def test_a_handler_is_seen_in_the_mask(mask, caught):
    assert parse_caught(f"Name:\tpython\nSigIgn:\t0\nSigCgt:\t{mask}\n", 62) is caught
    assert not parse_caught("", 62)


def test_a_request_for_stacks_is_read_and_a_wrong_one_is_said():
    raw = {"kind": "stacks", "id": "20261130T1-asked-ab", "ranks": [3], "native": True, "by": "alice"}
    assert parse_request(raw) == StacksRequest(id="20261130T1-asked-ab", ranks=(3,), native=True, by="alice")
    assert "no usable id" in parse_request({**raw, "id": "../../etc"})
    assert "names 'all' as ranks" in parse_request({**raw, "ranks": "all"})
    assert "known: end, renew, stacks, stop" in parse_request({"kind": "dance"})
