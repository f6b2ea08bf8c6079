"""Lines in a journal that no agent wrote: they become no history."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.control.fold import fold_journal, journal_events, num_machines
from gangline.store.rows import AttemptRow

EXIT = {"kind": "rank_exited", "t": 5.0, "rank": 1, "exit_code": 1, "signal": None, "ended_by": "self"}


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "rank_exited"},
        {"kind": "rank_exited", "t": 1.0},
        {**EXIT, "rank": None},
        {**EXIT, "exit_code": None},
        {**EXIT, "t": None},
        {"kind": "stopping", "t": 1.0},
        {"kind": "killed", "t": 1.0},
        {"kind": "warning", "t": 1.0},
        {"kind": "attempt_running"},
        {"kind": 7},
        {},
    ],
)
def test_a_record_without_its_keys_is_passed_over(record: dict[str, Any]):
    assert journal_events(0, 0, [record]) == []


def test_a_whole_record_beside_it_is_told():
    told = journal_events(0, 0, [{"kind": "rank_exited"}, EXIT, {**EXIT, "exit_code": None, "signal": 9}])
    assert [event.message for event in told] == [
        "Rank 1 on node 0 exited with code 1.",
        "Rank 1 on node 0 was ended by SIGKILL.",
    ]


def test_a_rank_does_not_end_by_a_line_that_says_nothing():
    attempt = AttemptRow(number=0, launch=0)
    assert fold_journal(attempt, 0, [{"kind": "rank_exited", "rank": 0}]).ranks == []
    assert len(fold_journal(attempt, 0, [EXIT]).ranks) == 1


def test_what_a_script_was_given_counts_as_its_nodes():
    attempt = AttemptRow(number=0, launch=0)
    agent = {"kind": "agent_started", "t": 1.0, "host": "a1", "pid": 7}
    started = {"kind": "attempt_started", "t": 2.0, "launch": 0, "nodes": [0]}
    plain = fold_journal(attempt, 0, [agent, started])
    assert (num_machines(plain), num_machines(attempt)) == (1, 0)
    script = fold_journal(attempt, 0, [agent, {**started, "machines": ["a1", "a2"], "tasks": 16}])
    assert num_machines(script) == 2
    assert (script.nodes[0]["host"], script.nodes[0]["machines"], script.nodes[0]["tasks"]) == ("a1", ["a1", "a2"], 16)
