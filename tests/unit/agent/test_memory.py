from __future__ import annotations

from pathlib import Path

from gangline.agent.memory import Memory, read_memory

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(tmp_path: Path, group: str) -> tuple[Path, Path]:
    """16 GiB, 10 of them free, and what /proc/self/cgroup says."""
    proc, mounts = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {10 << 20} kB\n")
    write(proc / "self/cgroup", group)
    return proc, mounts


def test_without_a_group_the_machine_is_the_limit(tmp_path: Path) -> None:
    proc, mounts = machine(tmp_path, "0::/user.slice\n")
    write(mounts / "user.slice/memory.max", "max\n")
    write(mounts / "user.slice/memory.current", f"{GIB}\n")
    assert read_memory(proc, mounts) == Memory(limit_bytes=16 * GIB, used_bytes=6 * GIB)


def test_the_tightest_group_around_the_process_counts_without_what_the_kernel_gives_back(tmp_path: Path) -> None:
    proc, mounts = machine(tmp_path, "0::/a/b\n")
    for name, limit, used in (("a", 4 * GIB, 3 * GIB), ("a/b", 8 * GIB, GIB)):
        write(mounts / name / "memory.max", str(limit))
        write(mounts / name / "memory.current", str(used))
        write(mounts / name / "memory.stat", f"anon 1\ninactive_file {GIB // 2}\n")
    assert read_memory(proc, mounts) == Memory(limit_bytes=4 * GIB, used_bytes=3 * GIB - GIB // 2)


def test_groups_of_version_1_and_of_a_container(tmp_path: Path) -> None:
    proc, mounts = machine(tmp_path, "7:cpu,memory:/docker/1234\n3:pids:/x\n")
    write(mounts / "memory/memory.limit_in_bytes", str(2 * GIB))
    write(mounts / "memory/memory.usage_in_bytes", str(GIB))
    assert read_memory(proc, mounts) == Memory(limit_bytes=2 * GIB, used_bytes=GIB)


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert read_memory(tmp_path, tmp_path) is None
