"""Gangs whose nodes differ, or are not fit: they end before a rank has started."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .conftest import Gang

EXIT_OTHER = 71


def make_interpreter(folder: Path, **versions: str) -> Path:
    """A virtual environment of its own in which packages look installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if "torch" in versions:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(f"__version__ = '{versions['torch']}'\ncuda: str = '12.8'\n")
    return folder / "bin" / "python"


@pytest.fixture
def start_on(gang: Gang, tmp_path: Path) -> Any:
    """Start a gang whose nodes each find another interpreter behind the one path that the spec names."""
    wrapper = tmp_path / "python"
    wrapper.write_text('#!/bin/sh\nexec "$TEST_INTERPRETER" "$@"\n')
    wrapper.chmod(0o755)

    def start(*interpreters: Path, **keys: Any) -> dict[str, Any]:
        gang.script("print('started')")
        gang.write_launch(nodes=len(interpreters), procs_per_node=1, python=str(wrapper), **keys)
        for node, interpreter in enumerate(interpreters):
            gang.start_agent(node, TEST_INTERPRETER=str(interpreter))
        gang.wait()
        return gang.result()

    return start


def test_nodes_with_another_torch_do_not_start(gang: Gang, tmp_path: Path, start_on: Any) -> None:
    new = make_interpreter(tmp_path / "new", torch="2.13.0", numpy="2.0.0")
    old = make_interpreter(tmp_path / "old", torch="2.12.1", numpy="2.0.0")
    result = start_on(new, new, old)
    host = gang.events("agent_started")[0]["host"]
    assert result["reason"] == "environment_mismatch"
    assert result["message"] == (
        f"The nodes do not fit together: torch: 2.13.0 on nodes 0-1, 2.12.1 on node 2 ({host})."
    )
    assert (result["next"], result["exit_code"], result["ranks"]) == ("end", EXIT_OTHER, [])
    assert gang.log(0) == ""
    versions = [json.loads(gang.attempt().environment(node).read_text())["python"]["torch"] for node in range(3)]
    assert [one["__version__"] for one in versions] == ["2.13.0", "2.13.0", "2.12.1"]


def test_only_chosen_packages_stop_a_gang(tmp_path: Path, start_on: Any) -> None:
    one = make_interpreter(tmp_path / "one", numpy="2.0.0")
    other = make_interpreter(tmp_path / "other", numpy="1.26.0")
    result = start_on(one, other, preflight={"packages": ["numpy"]})
    assert "numpy: 2.0.0 on node 0" in result["message"]
    assert result["reason"] == "environment_mismatch"


def test_a_policy_can_make_it_a_warning(gang: Gang, tmp_path: Path, start_on: Any) -> None:
    one = make_interpreter(tmp_path / "one", torch="2.13.0")
    other = make_interpreter(tmp_path / "other", torch="2.12.1")
    result = start_on(one, other, preflight={"on_mismatch": "warn"})
    assert result["outcome"] == "succeeded"
    assert gang.log(0) == gang.log(1) == "started\n"
    texts = [event["text"] for event in gang.events("warning")]
    assert any("torch: 2.13.0 on node 0" in text for text in texts)
    assert any("installed packages: " in text for text in texts)


def test_equal_nodes_start_without_a_word(gang: Gang) -> None:
    gang.script("print('started')")
    result = gang.run_to_end(nodes=2, procs_per_node=1, answers=str(gang.run.path / "answers"))
    assert result["outcome"] == "succeeded"
    assert gang.events("warning") == gang.events("warning", node=1) == []
    assert len(list((gang.run.path / "answers").glob("*.json"))) == 1


SHIFTED = """
import runpy, sys, time
real = time.time
time.time = lambda: real() + {shift_s}
sys.argv = sys.argv[2:]  # the interpreter that the harness names
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_node_whose_clock_is_wrong_is_named(gang: Gang) -> None:
    gang.script("print('started')")
    gang.write_launch(nodes=2, procs_per_node=1, preflight={"checks": ["disk", "clock"]})
    gang.start_agent(0)
    gang.start_agent(1, through=[sys.executable, "-c", SHIFTED.format(shift_s=120)])
    gang.wait()
    result = gang.result()
    assert result["reason"] == "unhealthy_node"
    assert "Node 1" in result["message"]
    assert "failed the check `clock`: its clock is 1" in result["message"]
    assert [(fault["node"], fault["why"]) for fault in result["nodes_at_fault"]] == [(1, "clock")]
    assert gang.log(0) == ""


def test_checks_that_pass_are_told_and_ranks_start(gang: Gang) -> None:
    gang.script("print('started')")
    result = gang.run_to_end(nodes=2, procs_per_node=1, preflight={"checks": ["disk", "clock", "device"]})
    assert result["outcome"] == "succeeded"
    (told,) = gang.events("preflight")
    assert "disk: " in told["text"]
    assert "clock: at most " in told["text"]
    assert "device: skipped: torch" in told["text"]
    assert gang.log(1) == "started\n"
    assert not list(gang.run.path.rglob(".gangline-check*"))


def test_a_network_below_the_floor_ends_the_launch(gang: Gang) -> None:
    pytest.importorskip("torch")
    gang.script("print('started')")
    keys = {"checks": ["allreduce"], "min_bandwidth_bytes": 10**15}
    result = gang.run_to_end(nodes=2, procs_per_node=1, preflight=keys)
    assert result["reason"] == "unhealthy_node"
    assert "all-reduce between all ranks moves " in result["message"]
    assert "1.0 PB/s is the floor" in result["message"]
    assert gang.log(0) == ""


def test_a_stop_ends_a_check(gang: Gang, tmp_path: Path) -> None:
    never = tmp_path / "python"
    never.write_text('#!/bin/sh\ncase "$*" in *allreduce*) while :; do sleep 1; done;; esac\nexec python3 "$@"\n')
    never.chmod(0o755)
    gang.start(nodes=1, procs_per_node=1, python=str(never), preflight={"checks": ["allreduce"]})
    gang.until(lambda: "allreduce" in " ".join(_command_lines(gang)))
    gang.stop(grace_s=1.0)
    gang.wait()
    assert gang.result()["outcome"] == "stopped"
    gang.until(lambda: not gang.left_behind())


def _command_lines(gang: Gang) -> list[str]:
    lines = []
    for pid in gang.left_behind():
        with suppress(OSError):  # gone meanwhile
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace"))
    return lines
