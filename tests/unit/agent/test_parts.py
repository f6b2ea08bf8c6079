"""Small pure parts of the agent."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.addresses import is_loopback, parse_local_addresses
from gangline.agent.bundle import bundle_name, render_bundle
from gangline.agent.commandline import needs_shell, render_argv, render_script, write_notebook_script
from gangline.agent.control import ControlFile, StopRequest, parse_request
from gangline.agent.follower import decide_pause_s
from gangline.agent.gangwire import parse_messages, same_token
from gangline.agent.hostinfo import parse_amd_devices, parse_nvidia_devices
from gangline.agent.members import silence_limit_s
from gangline.agent.memory import count_oom_kills
from gangline.agent.rendezvous import decide_port_range
from gangline.agent.starter import RankStart
from gangline.agent.storage import find_missing_interpreter, find_missing_outputs, probe_checkpoint_folder


def test_an_interpreter_that_was_never_there_is_not_said_to_have_gone(tmp_path: Path) -> None:
    never, gone = find_missing_interpreter("nopython"), find_missing_interpreter(str(tmp_path / "python"))
    assert never.startswith("there is no `nopython` on the search path of this node")
    assert gone.startswith(f"the interpreter {tmp_path}/python is not there any more")


def rank(kind: str, entry: str, *args: str) -> RankStart:
    paths = dict.fromkeys(("cwd", "log_path", "error_path", "stacks_path"), "/x")
    return RankStart(rank=0, local_rank=0, env={}, entry_kind=kind, entry=entry, args=args, python="py", **paths)


@pytest.mark.parametrize(
    ("start", "argv"),
    [
        (rank("script", "train.py", "--x", "a b"), ["py", "train.py", "--x", "a b"]),
        (rank("script", "-dash.py", "-x"), ["py", "./-dash.py", "-x"]),
        (rank("notebook", "-dash.notebook.py"), ["py", "./-dash.notebook.py"]),
        (rank("module", "pkg.train", "-v"), ["py", "-m", "pkg.train", "-v"]),
        (rank("command", "torchrun", "x.py"), ["torchrun", "x.py"]),
        (rank("command", "python x.py | tee log"), ["bash", "-o", "pipefail", "-c", "python x.py | tee log"]),
        (rank("command", "my prog"), ["my prog"]),
        (rank("command", "a b", "c"), ["a b", "c"]),
    ],
)
def test_argument_vectors(start: RankStart, argv: list[str]) -> None:
    assert render_argv(start, exists=lambda name: name == "my prog") == argv


@pytest.mark.parametrize(
    ("command", "expected"), [("ls", False), ("./a-b_c.sh", False), ("a && b", True), ("X=$Y", True), ("f>g", True)]
)
def test_what_needs_a_shell(command: str, *, expected: bool) -> None:
    assert needs_shell(command, exists=lambda _: False) is expected


def test_notebooks_become_scripts(tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "source": ["%time\n", "if x:\n", "    !ls\n", "y = 5 % 2"]},
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": "%%bash\nrm -rf x"},
    ]
    text = render_script(json.dumps({"cells": cells}))
    compile(text, "nb", "exec")
    assert "y = 5 % 2" in text
    assert "# rm -rf x" in text
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert write_notebook_script(tmp_path, "a.ipynb") == "a.notebook.py"
    assert (tmp_path / "a.notebook.py").read_text() == text
    for wrong in ("[]", "{}", "no"):
        with pytest.raises(ValueError, match=r"no cells|Expecting"):
            render_script(wrong)


def test_requests_are_understood_or_explained() -> None:
    assert parse_request({"kind": "stop", "cause": "preemption", "grace_s": 3, "by": "a"}) == StopRequest(
        cause="preemption", grace_s=3, by="a"
    )
    for wrong in ({"kind": "dance"}, {"kind": "stop", "cause": "x"}, {"kind": "stop", "grace_s": -1}, {}):
        assert isinstance(parse_request(wrong), str)
    assert isinstance(parse_request({"kind": "stop", "grace_s": float("nan")}), str)


def test_control_is_read_from_its_offset_and_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "control.jsonl"
    control = ControlFile(path, 0)
    assert control.read() == []
    path.write_text('{"kind": "stop"}\n{"kind": ')
    assert control.read() == [{"kind": "stop"}]
    assert control.read() == []
    with path.open("a") as file:
        file.write('"x"}\n')
    assert control.read() == [{"kind": "x"}]
    assert ControlFile(path, path.stat().st_size).read() == []


def test_messages_are_lines_of_json() -> None:
    assert parse_messages(b'{"a": 1}\n{"b"') == ([{"a": 1}], b'{"b"')
    for wrong in (b"[1]\n", b"no\n", b"\xff\n"):
        with pytest.raises(ValueError, match=r"JSON|Expecting|decode"):
            parse_messages(wrong)


def test_tokens_are_compared_whole() -> None:
    assert same_token("abc", "abc")
    for wrong in ("", "ab", "abcd", "abd", None, 3):
        assert not same_token(wrong, "abc")
    assert not same_token("", "")


@pytest.mark.parametrize(
    ("ephemeral", "expected"),
    [
        ((32768, 60999), (20000, 32767)),
        ((49152, 65535), (20000, 32767)),
        ((15000, 61000), (61001, 65535)),
        ((10000, 65535), (1024, 9999)),
        ((1024, 65535), (20000, 32767)),
    ],
)
def test_ports_lie_outside_of_what_the_kernel_hands_out(ephemeral: tuple[int, int], expected: tuple[int, int]) -> None:
    assert decide_port_range(ephemeral) == expected


def test_pauses_grow_are_bounded_and_differ() -> None:
    assert decide_pause_s(1, 0.0) < decide_pause_s(3, 0.0) < decide_pause_s(3, 0.9)
    assert decide_pause_s(1000, 0.999) <= 3.0
    assert silence_limit_s(1000) > silence_limit_s(2)


def test_local_addresses_are_read_from_the_routing_table() -> None:
    table = (
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 10.1.2.0\n"
        "        /24 link UNICAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
    )
    assert parse_local_addresses(table) == ["10.1.2.3", "127.0.0.1"]
    assert is_loopback("127.0.0.1")
    assert not is_loopback("10.1.2.3")


def test_devices_are_read_from_their_tools() -> None:
    nvidia = parse_nvidia_devices("0, NVIDIA H100, 81559, 550.54, GPU-1\nNo devices were found\n")
    assert nvidia == [
        {"id": "0", "name": "NVIDIA H100", "memory_bytes": 81559 << 20, "driver": "550.54", "uuid": "GPU-1"}
    ]
    cards = {"card0": {"Card Series": "MI300X", "VRAM Total Memory (B)": "5"}, "system": {"Driver version": "6"}}
    assert parse_amd_devices(json.dumps(cards))[0]["driver"] == "6"
    assert parse_amd_devices("not json") == []


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [("0::/job\n", "job/memory.events"), ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control")],
)
def test_kernel_kills_are_counted_in_both_kinds_of_control_groups(tmp_path: Path, cgroup: str, file: str) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    counters = tmp_path / "fs" / file
    counters.parent.mkdir(parents=True)
    counters.write_text("under_oom 0\noom_kill 3\n")
    assert count_oom_kills(tmp_path / "cgroup", tmp_path / "fs") == 3
    counters.unlink()
    assert count_oom_kills(tmp_path / "cgroup", tmp_path / "fs") is None


def test_outputs_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "x").touch()
    found = find_missing_outputs(["full", "hollow", "none", str(tmp_path / "full" / "x")], tmp_path)
    assert found == ["hollow is empty", "none is missing"]


def test_the_checkpoint_folder_is_made_and_tried(tmp_path: Path) -> None:
    assert probe_checkpoint_folder(str(tmp_path / "a" / "b")) == ""
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    assert "cannot be written" in probe_checkpoint_folder(str(tmp_path / "file" / "x"))


def test_the_bundle_is_the_same_every_time_and_holds_what_agents_need() -> None:
    data = render_bundle()
    assert data == render_bundle()
    assert bundle_name(data).startswith("agent-")
    names = set(zipfile.ZipFile(io.BytesIO(data)).namelist())
    assert {"__main__.py", "gangline/__init__.py", "gangline/agent/main.pyc", "gangline/domain/spec.py"} <= names
    assert "gangline/agent/injected/sitecustomize.py" in names
    assert not any(name.startswith(("gangline/server", "gangline/cli")) for name in names)
