from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline.agent.launchspec import LaunchInvalid, load_launch, parse_launch
from gangline.domain.phase import Budget
from gangline.domain.spec import EntryKind, OnTimeLimit, ResumeMode, StartMode, Strategy
from gangline.rundir.layout import RunDir

DOCUMENTED: dict[str, Any] = {
    "version": 1,
    "run_id": "llama-7k3q",
    "run_name": "llama",
    "project": "default",
    "launch": 2,
    "first_attempt": 4,
    "nodes": 2,
    "procs_per_node": 3,
    "devices": [["0"], ["1", "2"]],
    "device_kind": "nvidia",
    "cpus_per_rank": None,
    "memory_bytes": None,
    "token": "hex",
    "entry_kind": "script",
    "entry": "train.py",
    "args": ["--lr", "3e-4"],
    "workdir": ".",
    "python": "/abs/python",
    "env": {"K": "V"},
    "unbuffered": True,
    "start": "auto",
    "preload": [],
    "strategy": "ddp",
    "checkpoint": {"path": "/abs", "keep_last": 3, "resume": "required"},
    "restarts": {
        "max_restarts": 0,
        "max_infrastructure_restarts": 3,
        "max_preemptions": None,
        "backoff_s": 1.0,
        "max_backoff_s": 60.0,
    },
    "restarts_used": {"user": 0, "infrastructure": 1, "preemption": 0},
    "stop": {
        "time_limit_s": None,
        "on_time_limit": "stop",
        "grace_s": 30.0,
        "failure_grace_s": 5.0,
        "start_timeout_s": 300.0,
    },
    "outputs": ["model"],
    "snapshot_digest": None,
    "delay_s": 0.5,
    "control_offset": 7,
}


def test_the_documented_form_is_understood() -> None:
    spec = parse_launch(DOCUMENTED, default_checkpoints=Path("/d"))
    assert (spec.entry_kind, spec.start, spec.strategy) == (EntryKind.SCRIPT, StartMode.AUTO, Strategy.DDP)
    assert spec.checkpoint.resume is ResumeMode.REQUIRED
    assert spec.checkpoint.path == "/abs"
    assert spec.stop.on_time_limit is OnTimeLimit.STOP
    assert spec.restarts_used == {Budget.USER: 0, Budget.INFRASTRUCTURE: 1, Budget.PREEMPTION: 0}
    shape = spec.shape()
    assert (shape.world_size, list(shape.ranks_of(1)), shape.node_of(3)) == (6, [3, 4, 5], 1)
    assert (spec.devices_of(0), spec.devices_of(1), spec.devices_of(2)) == (("0",), ("1", "2"), ())
    assert (spec.args, spec.outputs, spec.delay_s, spec.control_offset) == (("--lr", "3e-4"), ("model",), 0.5, 7)


def test_secrets_do_not_show_in_its_text() -> None:
    spec = parse_launch({**DOCUMENTED, "env": {"KEY": "sesame"}}, default_checkpoints=Path("/d"))
    assert "sesame" not in repr(spec)
    assert "'hex'" not in repr(spec)


def test_the_default_folder_for_checkpoints() -> None:
    raw = {**DOCUMENTED, "checkpoint": {"path": None}}
    assert parse_launch(raw, default_checkpoints=Path("/d")).checkpoint.path == "/d"


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"nodes": 0}, {"entry_kind": "dance"}, {"stop": {"grace": 1}}, {"nodes": None}]
)
def test_what_is_not_understood_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LaunchInvalid):
        parse_launch({**DOCUMENTED, **change}, default_checkpoints=Path("/d"))


def test_a_missing_key_is_named() -> None:
    raw = {key: value for key, value in DOCUMENTED.items() if key != "token"}
    with pytest.raises(LaunchInvalid, match="token"):
        parse_launch(raw, default_checkpoints=Path("/d"))


@pytest.mark.parametrize("text", [None, "{", '"x"'])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None) -> None:
    run = RunDir(tmp_path)
    if text is not None:
        run.launch(0).path.mkdir(parents=True)
        run.launch(0).spec.write_text(text)
    with pytest.raises(LaunchInvalid):
        load_launch(run, 0)


def test_a_gang_without_lost_nodes_numbers_its_ranks_without_gaps() -> None:
    shape = parse_launch({**DOCUMENTED, "nodes": 4, "procs_per_node": 2}, default_checkpoints=Path("/d")).shape({1})
    assert shape.nodes == (0, 2, 3)
    assert [list(shape.ranks_of(node)) for node in shape.nodes] == [[0, 1], [2, 3], [4, 5]]
    assert [shape.node_of(rank) for rank in range(shape.world_size)] == [0, 0, 2, 2, 3, 3]
