"""What is sampled of a machine, its ranks and its accelerators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.accelerators import Accelerators, parse_neuron, parse_nvidia, read_amd
from gangline.agent.loop import Loop
from gangline.agent.machine import decide_rates, read_counters, read_gauges
from gangline.agent.rankload import RankLoad, _Sums, decide_load
from gangline.agent.ranktree import parse_stat
from gangline.agent.sampler import SystemJournal
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import AttemptDir

TICKS = os.sysconf("SC_CLK_TCK")
NET = """Inter-|   Receive                        |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9999999 82165 0 0 0 0 0 0  9999999   82165    0    0    0     0       0          0
  eth0: {received} 10 0 0 0 0 0 0  {sent}      20    0    0    0     0       0          0
"""
DISKS = """ 259       0 nvme0n1 100 0 {read} 10 200 0 {written} 20 0 30 40
 259       1 nvme0n1p1 100 0 {read} 10 200 0 {written} 20 0 30 40
   7       0 loop0 5 0 50 0 0 0 0 0 0 0 0
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_machine(
    root: Path, *, busy: int = 0, steal: int = 0, idle: int = 0, moved: int = 0, throttled: int = 0
) -> Path:
    cpu = f"cpu  {busy * TICKS} 0 0 {idle * TICKS} 0 0 0 {steal * TICKS} 0 0\ncpu0 1 2 3\n"
    write(root, "proc/stat", cpu)
    write(root, "proc/net/dev", NET.format(received=moved, sent=2 * moved))
    write(root, "proc/diskstats", DISKS.format(read=moved, written=3 * moved))
    write(root, "proc/vmstat", f"nr_free_pages 5\npswpin {moved}\npswpout 0\n")
    write(root, "proc/self/cgroup", "0::/jobs/one\n")
    write(root, "sys/fs/cgroup/cpu.stat", "usage_usec 5\nthrottled_usec 0\n")
    write(
        root, "sys/fs/cgroup/jobs/cpu.stat", f"usage_usec 5\nnr_throttled 3\nthrottled_usec {throttled * 1_000_000}\n"
    )
    return root


def test_rates_are_of_the_time_between_two_readings(tmp_path: Path):
    before = read_counters(10.0, make_machine(tmp_path))
    after = read_counters(12.0, make_machine(tmp_path, busy=3, steal=1, idle=4, moved=1000, throttled=1))
    rates = decide_rates(before, after)
    assert rates["cpu"] == {"busy": 0.5, "user": 0.375, "system": 0.0, "iowait": 0.0, "steal": 0.125}
    assert (rates["received_bytes_s"], rates["sent_bytes_s"]) == (500, 1000)
    assert (rates["disk_read_bytes_s"], rates["disk_written_bytes_s"]) == (256_000, 768_000)
    assert rates["throttled_s_per_s"] == 0.5
    assert rates["swap_in_bytes_s"] == 500 * os.sysconf("SC_PAGE_SIZE")


def test_throttling_is_read_from_groups_of_both_versions(tmp_path: Path):
    write(tmp_path, "proc/self/cgroup", "4:memory:/x\n2:cpu,cpuacct:/jobs\n")
    write(tmp_path, "sys/fs/cgroup/cpu/jobs/cpu.stat", "nr_periods 9\nthrottled_time 2500000000\n")
    assert read_counters(0.0, tmp_path).sums == {"throttled_s_per_s": 2.5}


def test_what_a_system_does_not_tell_is_missing(tmp_path: Path):
    nothing = read_counters(0.0, tmp_path)
    assert decide_rates(nothing, read_counters(1.0, tmp_path)) == {}
    assert decide_rates(nothing, nothing) == {}
    assert set(read_gauges(tmp_path)) == {"load"}


def test_gauges(tmp_path: Path):
    write(tmp_path, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 40 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n")
    write(tmp_path, "proc/pressure/io", "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 total=0\n")
    found = read_gauges(tmp_path)
    assert found["memory_total_bytes"] == 102_400
    assert found["swap_used_bytes"] == 6144
    assert found["pressure"] == {"io": 12.5}


def test_a_rank_that_waits_for_a_processor_is_seen():
    before = _Sums(time=0.0, cpu_s=1.0, delay_s=0.5, read_bytes=100)
    after = _Sums(time=2.0, cpu_s=2.0, delay_s=1.5, read_bytes=300, major_faults=4)
    assert decide_load(before, after) == {
        "cpu": 0.5,
        "delay": 0.5,
        "read_bytes_s": 100.0,
        "written_bytes_s": 0.0,
        "major_faults_s": 2.0,
    }
    assert decide_load(after, after) == {}
    assert decide_load(after, _Sums(time=3.0))["cpu"] == 0.0  # a child took its share along


def test_a_name_with_parentheses_does_not_shift_the_fields():
    fields = " ".join(str(number) for number in range(4, 30))
    assert parse_stat(f"7 (a) b (c)) S {fields}".encode()) == {
        "letter": "S",
        "cpu_s": (14 + 15) / TICKS,
        "reaped_s": (16 + 17) / TICKS,
        "major_faults": 12,
        "rss_bytes": 24 * os.sysconf("SC_PAGE_SIZE"),
    }


def test_ranks_are_sampled_with_their_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        load = RankLoad()
        deadline = time.monotonic() + 30
        while (found := RankLoad().sample({3: process.pid}, 0.0)[3])["processes"] < 2:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        load.sample({3: process.pid}, 0.0)
        found = load.sample({3: process.pid}, 1.0)[3]
        os.killpg(process.pid, 9)
    assert found["processes"] == 2
    assert found["rss_bytes"] > 1 << 20
    assert 0 <= found["cpu"] <= 2
    gone = load.sample({3: process.pid}, 2.0)[3]
    assert (gone["state"], gone["cpu"]) == ("", 0.0)


def test_a_journal_holds_samples_of_its_attempt_alone(tmp_path: Path):
    journal = SystemJournal(1, Accelerators("", Loop(), helpers=set()))
    first, second = AttemptDir(tmp_path / "0"), AttemptDir(tmp_path / "1")
    for attempt in (first, first, None, second, None):
        journal.sample(attempt, {0: os.getpid()})
    assert [len(list(read_journal(attempt.system(1)))) for attempt in (first, second)] == [2, 1]
    begun, sample = read_journal(first.system(1))
    assert "delay" not in begun["ranks"]["0"]  # nothing to compare with yet
    assert sample["kind"] == "sample"
    assert sample["ranks"]["0"]["cpu"] >= 0
    assert sample["ranks"]["0"]["rss_bytes"] > 0


NVIDIA = """0, 97, 61234, 81559, 61, 512.34, 1980, 0x0000000000000004, 0
1, 3, 512, 81559, 88, 120.10, 1200, 0x0000000000000060, 2
2, [N/A], [N/A], [N/A], 40, [N/A], [N/A], [N/A], [N/A]
Unable to determine the device handle for GPU0000:18:00.0: Unknown Error
"""


def test_nvidia_devices():
    first, second, third = parse_nvidia(NVIDIA)
    assert first == {
        "id": "0",
        "use_percent": 97.0,
        "memory_used_bytes": 61234 << 20,
        "memory_total_bytes": 81559 << 20,
        "temperature_c": 61.0,
        "power_w": 512.34,
        "clock_mhz": 1980.0,
        "throttled": ["power cap"],
        "ecc_errors": 0.0,
    }
    assert second["throttled"] == ["heat (driver)", "heat (hardware)"]
    assert (third["use_percent"], third["throttled"], third["temperature_c"]) == (None, [], 40.0)
    assert parse_nvidia("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == []


def test_neuron_cores_of_all_runtimes():
    def runtime(**use: float) -> dict[str, Any]:
        cores = {core[1:]: {"neuroncore_utilization": percent} for core, percent in use.items()}
        return {"pid": 7, "report": {"neuroncore_counters": {"period": 1.0, "neuroncores_in_use": cores, "error": ""}}}

    report = {
        "neuron_runtime_data": [runtime(c0=12.5, c1=80.0), runtime(c1=10.0), {"error": "gone"}],
        "system_data": {},
    }
    assert parse_neuron(json.dumps(report)) == [{"id": "0", "use_percent": 12.5}, {"id": "1", "use_percent": 80.0}]
    assert parse_neuron("starting") == parse_neuron("[1]") == parse_neuron("{}") == []


def test_amd_devices(tmp_path: Path):
    for name, value in {
        "gpu_busy_percent": 55,
        "mem_info_vram_used": 1 << 30,
        "mem_info_vram_total": 64 << 30,
        "hwmon/hwmon3/temp1_input": 52000,
        "hwmon/hwmon3/power1_average": 230_000_000,
    }.items():
        write(tmp_path, f"card1/device/{name}", f"{value}\n")
    (tmp_path / "card0" / "device").mkdir(parents=True)  # a display without such files
    assert read_amd(tmp_path) == [
        {
            "id": "1",
            "use_percent": 55.0,
            "memory_used_bytes": 1 << 30,
            "memory_total_bytes": 64 << 30,
            "temperature_c": 52.0,
            "power_w": 230.0,
        }
    ]


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0, 97, 1, 2, 61, 512.34, 1980, 0x0, 0\\n'\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("fake_tool")
def test_the_tool_goes_on_telling_and_is_ended_with_the_agent():
    loop, helpers = Loop(), set[int]()
    accelerators = Accelerators("nvidia", loop, helpers=helpers)
    deadline = time.monotonic() + 30

    def look() -> None:
        if accelerators.sample() or time.monotonic() > deadline:
            loop.stop(0)

    loop.every(0.02, look)
    loop.run()
    assert accelerators.sample()[0]["use_percent"] == 97.0
    (pid,) = helpers
    accelerators.close()
    assert not helpers
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_the_tool_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    accelerators = Accelerators("nvidia", Loop(), helpers=set())
    assert accelerators.sample() == accelerators.sample() == []
    accelerators.close()
