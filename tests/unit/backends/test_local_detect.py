from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.backends.local import detect
from gangline.backends.local.detect import detect_capacity, detect_cpus, detect_devices, detect_memory_bytes
from gangline.backends.local.parse import (
    parse_cgroups,
    parse_cpu_max,
    parse_kfd_properties,
    parse_limit_bytes,
    parse_mem_total,
    parse_nvidia_gpus,
    parse_nvidia_mig,
    parse_visible,
)
from gangline.backends.local.render import render_env, render_launch
from gangline.domain.errors import GangTooLarge
from gangline.queue.fit import Demand, check_feasible
from gangline.testing import make_gang

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]
KNOWN = [(str(index), uuid) for index, uuid in enumerate(UUIDS)]
NVIDIA = "".join(f"{index}, {uuid}, [N/A]\n" for index, uuid in KNOWN)
MIG_QUERY = "0, GPU-aa11, Enabled\n1, GPU-ab22, Disabled\n"
MIG_LIST = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa11)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111)
  MIG 3g.20gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-ab22)
"""
KFD_CPU = "cpu_cores_count 64\nsimd_count 0\nmem_banks_count 1\n"
KFD_GPU = "cpu_cores_count 0\nsimd_count 440\nmem_banks_count 1\n"


def test_nvidia() -> None:
    assert parse_nvidia_gpus(NVIDIA) == [(index, uuid, False) for index, uuid in KNOWN]
    assert parse_nvidia_gpus(MIG_QUERY)[0] == ("0", "GPU-aa11", True)
    assert parse_nvidia_gpus("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n") == []
    assert parse_nvidia_mig(MIG_LIST) == {"0": ["MIG-1111", "MIG-2222"]}


def test_amd() -> None:
    assert parse_kfd_properties({0: KFD_CPU, 1: KFD_GPU, 10: KFD_GPU, 2: KFD_GPU}) == ["0", "1", "2"]
    assert parse_kfd_properties({}) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", ["2", "0"]),
        (" 1 , 2 ", ["1", "2"]),
        ("0,7,1", ["0"]),
        ("1,1", ["1"]),
        ("GPU-cc33", ["GPU-cc33"]),
        ("GPU-c", ["GPU-c"]),
        ("GPU-a", []),
    ],
)
def test_visible_devices(value, expected) -> None:
    assert parse_visible(value, KNOWN) == expected


def test_control_groups() -> None:
    assert parse_cgroups("0::/user.slice\n") == {"": "/user.slice"}
    assert parse_cgroups("4:memory:/a\n3:cpu,cpuacct:/b\n") == {"memory": "/a", "cpu": "/b", "cpuacct": "/b"}
    assert parse_cpu_max("150000 100000\n") == 1.5
    assert parse_cpu_max("max 100000\n") is None
    assert parse_cpu_max("-1 100000") is None
    assert parse_cpu_max(" ") is None
    assert parse_limit_bytes("max\n") is None
    assert parse_limit_bytes("9223372036854771712\n") is None
    assert parse_limit_bytes("1073741824\n") == 1 << 30
    assert parse_limit_bytes("") is None
    assert parse_mem_total("MemTotal:       24684084 kB\nMemFree: 1 kB\n") == 24684084 * 1024
    assert parse_mem_total("") is None


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 1000000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_limits_of_version_2_count_at_every_level(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    root = system(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slice/cpu.max": "350000 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": "500000000\n",
            "sys/fs/cgroup/slice/memory.max": "max\n",
        },
    )
    assert detect_cpus(root) == 3
    assert detect_memory_bytes(root) == 500_000_000


def test_limits_of_version_1(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    root = system(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n1:cpu:/job\n0::/\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "600000000\n",
        },
    )
    assert detect_cpus(root) == 1
    assert detect_memory_bytes(root) == 600_000_000


def test_a_machine_without_limits_or_these_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2}, raising=False)
    assert detect_cpus(tmp_path) == 3
    assert detect_memory_bytes(tmp_path) > 0


def tool(folder: Path, monkeypatch, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_devices_of_nvidia(tmp_path, monkeypatch) -> None:
    (tmp_path / "out").write_text(NVIDIA)
    tool(tmp_path / "bin", monkeypatch, f"cat {tmp_path}/out\n")
    assert detect_devices({}, system=tmp_path) == ("nvidia", ("0", "1", "2"))
    assert detect_devices({"CUDA_VISIBLE_DEVICES": "2"}, system=tmp_path) == ("nvidia", ("2",))
    assert detect_devices({"CUDA_VISIBLE_DEVICES": ""}, system=tmp_path) == ("", ())


def test_devices_of_a_gpu_that_is_cut_into_parts(tmp_path, monkeypatch) -> None:
    (tmp_path / "query").write_text(MIG_QUERY)
    (tmp_path / "list").write_text(MIG_LIST)
    tool(tmp_path / "bin", monkeypatch, f'[ "$1" = -L ] && cat {tmp_path}/list || cat {tmp_path}/query\n')
    assert detect_devices({}, system=tmp_path) == ("nvidia", ("MIG-1111", "MIG-2222", "1"))


def test_a_tool_that_fails_means_no_devices(tmp_path, monkeypatch) -> None:
    tool(tmp_path / "bin", monkeypatch, "echo 0, GPU-aa, Disabled; exit 9\n")
    assert detect_devices({}, system=tmp_path) == ("", ())


def test_devices_of_amd(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = "sys/class/kfd/kfd/topology/nodes"
    root = system(
        tmp_path,
        {f"{folder}/0/properties": KFD_CPU, f"{folder}/1/properties": KFD_GPU, f"{folder}/2/properties": KFD_GPU},
    )
    assert detect_devices({}, system=root) == ("amd", ("0", "1"))
    assert detect_devices({"HIP_VISIBLE_DEVICES": "1"}, system=root) == ("amd", ("1",))
    assert detect_devices({"ROCR_VISIBLE_DEVICES": "0"}, system=root) == ("amd", ("0",))


def test_this_machine() -> None:
    capacity = detect_capacity(os.environ)
    assert 1 <= capacity.cpus <= (os.cpu_count() or 1)
    assert capacity.memory_bytes > 10**8
    assert capacity.ranks == max(256, 32 * capacity.cpus)
    assert capacity.nodes == max(64, 4 * capacity.cpus)


@pytest.mark.parametrize(("cpus", "nodes", "ranks"), [(2, 64, 256), (64, 256, 2048)])
def test_a_slip_in_a_size_cannot_take_the_machine_down(tmp_path, monkeypatch, cpus, nodes, ranks) -> None:
    monkeypatch.setattr(detect, "detect_cpus", lambda _: cpus)
    capacity = detect_capacity({}, system=tmp_path)
    assert (capacity.nodes, capacity.ranks) == (nodes, ranks)
    check_feasible(capacity, Demand(nodes=8, procs_per_node=32), pool="local")
    with pytest.raises(GangTooLarge, match=f"1000 nodes in one gang asked, pool `local` has {nodes}"):
        check_feasible(capacity, Demand(nodes=1000), pool="local")


def test_render() -> None:
    env = {
        "HOME": "/h",
        "PATH": "/bin",
        "LC_CTYPE": "C",
        "SLURM_JOB_ID": "1",
        "PYTHONPATH": "/x",
        "GANGLINE_HOME": "/g",
    }
    launch = render_launch(make_gang(nodes=2, launch=3), backend="local", agent=("/py", "/a.pyz"), env=env)
    assert launch.commands[1] == ("/py", "/a.pyz", "agent", "/nowhere/train-2abc", "--launch", "3", "--node", "1")
    passed_on = {"HOME": "/h", "PATH": "/bin", "LC_CTYPE": "C"}
    assert launch.env == render_env(env) == {**passed_on, "GANGLINE_ADDRESS": "127.0.0.1"}
