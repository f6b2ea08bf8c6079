"""Which node a leader finds at fault, from what nodes have measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline.agent.checks import check_disk
from gangline.agent.preflight import decide_clock_faults, decide_faults, render_results


def speed(measured: float, *, local: float | None = None, **pairs: float) -> list[dict[str, Any]]:
    named = {name.removeprefix("node"): value for name, value in pairs.items()}
    return [{"check": "allreduce", "ok": True, "text": "", "measured": measured, "local": local, "pairs": named}]


def named(results: dict[int, Any], floor: int | None = 100) -> list[tuple[int, str]]:
    return [(fault.node, fault.text.split(" moves ")[0]) for fault in decide_faults(results, floor)]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({0: speed(150), 1: speed(150)}, []),
        ({0: speed(50, local=200), 1: speed(50, local=60)}, [(1, "all-reduce between its ranks")]),
        (
            {
                0: speed(50, node1=20, node2=150),
                1: speed(50, node0=20, node2=20),
                2: speed(50, node0=150, node1=20),
            },
            [(1, "all-reduce to its neighbours")],
        ),
        ({0: speed(50), 1: speed(50)}, [(0, "all-reduce between all ranks"), (1, "all-reduce between all ranks")]),
        ({0: [{"check": "allreduce", "ok": None, "text": "skipped"}]}, []),
    ],
)
def test_slow_nodes(results: dict[int, Any], expected: list[tuple[int, str]]):
    assert named(results) == expected


def test_without_a_floor_any_speed_will_do():
    assert named({0: speed(0.1)}, None) == []


def test_what_a_node_says_it_failed_counts_once_a_node_and_check():
    failed = {"check": "device", "ok": False, "text": "3 words of cuda:0 do not hold what was written"}
    results = {0: speed(50), 1: [failed, failed]}
    (fault,) = decide_faults(results, 100)
    assert (fault.node, fault.check, fault.text) == (1, "device", failed["text"])


def test_clocks_count_only_beyond_what_the_round_trip_hides():
    offsets = {1: (1.2, 0.001), 2: (-30.0, 0.01), 3: (1.2, 1.0), 4: (0.5, 0.0)}
    faults = decide_clock_faults(offsets, 1.0)
    assert [(fault.node, fault.text) for fault in faults] == [
        (1, "its clock is 1.20 s ahead of node 0's, 1 s is the limit"),
        (2, "its clock is 30.00 s behind node 0's, 1 s is the limit"),
    ]


def test_results_are_told_by_their_slowest_node():
    disk = {"check": "disk", "ok": True, "text": "9 MB/s to the slowest folder", "measured": 9e6}
    fast = {"check": "disk", "ok": True, "text": "90 MB/s", "measured": 9e7}
    device = {"check": "device", "ok": None, "text": "skipped: torch sees no accelerator"}
    said = render_results({0: [fast, device], 1: [disk, device]}, {1: (0.0004, 0.001)})
    assert said == (
        "disk: 9 MB/s to the slowest folder; device: skipped: torch sees no accelerator; clock: at most 0.4 ms off"
    )


def test_a_disk_is_written_and_nothing_is_left(tmp_path: Path):
    found = check_disk(dict.fromkeys([str(tmp_path), str(tmp_path / "new"), ""]))
    assert found["ok"] is True
    assert found["measured"] > 0
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_a_folder_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    found = check_disk({str(tmp_path / "file" / "below"): None})
    assert found["ok"] is False
    assert f"{tmp_path}/file/below cannot be written" in found["text"]
