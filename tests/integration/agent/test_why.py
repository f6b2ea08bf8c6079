"""Why a rank failed, however its end came about; and that the kernel's kills for memory are told from others."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import lack

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = pytest.mark.integration

WAYS = """
    import errno, os, subprocess, sys, threading, traceback

    def printed():
        try:
            raise ValueError("printed and gone")
        except ValueError:
            traceback.print_exc()
            os._exit(3)

    def recorded():
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("told to record")
        try:
            main()
        except ValueError:
            os._exit(4)

    def said():
        raise SystemExit("no such config: a.yaml")

    def threaded():
        def work():
            raise ValueError("in a thread")
        threading.excepthook = lambda args: (sys.__excepthook__(*args[:3]), os._exit(5))
        threading.Thread(target=work).start()
        threading.Event().wait(60)

    def in_child():
        subprocess.run([sys.executable, "-c", "raise ValueError('in the child')"], check=True)

    def chained():
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("could not save") from error

    def grouped():
        raise ExceptionGroup("several", [KeyError("a"), MemoryError()])

    [printed, recorded, said, threaded, in_child, chained, grouped][int(os.environ["GANGLINE_ATTEMPT"])]()
"""
EXPECTED: list[tuple[str | None, str, str]] = [
    ("ValueError", "user_error", "the last exception in its log may or may not be why: ValueError: printed and gone."),
    ("ValueError", "user_error", "failed: ValueError: told to record."),
    (None, "user_error", 'exit code 1; its last line is "no such config: a.yaml".'),
    ("ValueError", "user_error", "in a thread."),
    (
        "subprocess.CalledProcessError",
        "user_error",
        "failed: ValueError: in the child (then subprocess.CalledProcessError).",
    ),
    ("RuntimeError", "storage", "No space left on device (then RuntimeError)."),
    ("ExceptionGroup", "out_of_memory", "ran out of memory: MemoryError (then ExceptionGroup)"),
]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is of Python 3.11")
def test_however_an_exception_ends_a_rank_it_is_known(gang: Gang) -> None:
    gang.script(WAYS)
    last = len(EXPECTED) - 1
    gang.run_to_end(procs_per_node=1, restarts={"max_restarts": last, "backoff_s": 0.0, "max_backoff_s": 0.0})
    for number, (kind, reason, words) in enumerate(EXPECTED):
        result = gang.result(number)
        assert result["first_failure"]["error_type"] == kind, number
        assert (result["reason"], words in result["message"]) == (reason, True), result["message"]
    child = gang.result(4)["first_failure"]
    assert child["causes"] == [{"type": "ValueError", "message": "in the child"}]
    assert "in the child" in child["traceback"]
    assert "CalledProcessError" in child["traceback"]


def test_python_inside_of_a_shell_wrapper_is_understood(gang: Gang) -> None:
    gang.script("raise ModuleNotFoundError(\"No module named 'flash_attn'\", name='flash_attn')")
    entry = f"set -e; {sys.executable} -I train.py; echo never"
    result = gang.run_to_end(entry_kind="command", entry=entry, procs_per_node=1)
    assert result["signature"] == "module_missing"
    assert "flash_attn" in result["message"]
    assert result["first_failure"]["error_type"] == "ModuleNotFoundError"
    assert gang.run.path.name not in result["hint"]
    assert sys.executable in result["hint"]


def test_why_is_told_while_the_others_are_still_being_ended(gang: Gang) -> None:
    gang.script("""
        import os, signal, time
        import gangline
        gangline.progress(7, total=100)
        if os.environ["RANK"] != "1":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("up-" + os.environ["RANK"], "w").close()
            time.sleep(600)
        while not all(os.path.exists(f"up-{rank}") for rank in (0, 2, 3)):
            time.sleep(0.01)
        raise ValueError("loss is not finite")
    """)
    gang.start(procs_per_node=4, stop={"failure_grace_s": 3.0})
    told = gang.until(lambda: gang.events("first_failure"))[0]
    assert not gang.attempt().result.exists()
    assert (told["reason"], told["signature"]) == ("user_error", "not_finite")
    assert (told["failure"]["rank"], told["failure"]["step"]) == (1, 7)
    gang.wait()
    result = gang.result()
    assert result["first_failure"] == told["failure"]
    assert result["message"] == told["message"]
    others = {one["rank"]: one for one in result["ranks"]}
    assert (others[0]["ended_by"], others[0]["step"], others[0]["error"]) == ("platform", 7, None)
    assert {others[rank]["place"] for rank in (0, 2, 3)} - {None} == {"in time.sleep (train.py:8)"}
    assert others[1]["error"] == "ValueError: loss is not finite"


def test_a_signature_of_the_spec_decides(gang: Gang) -> None:
    gang.script("raise KeyError('SHARD 17 is missing')")
    own = {r"SHARD \d+": "storage: Mount /data again."}
    result = gang.run_to_end(procs_per_node=1, signatures=own)
    assert (result["reason"], result["signature"], result["hint"]) == ("storage", "own_1", "Mount /data again.")


def memory_groups() -> Path | None:
    """Where this process may make control groups with a limit of memory."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory") / path.strip("/")
        if not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup") / path.strip("/")
    return None


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    """A control group of 300 MiB; skipped where none can be made."""
    parent = memory_groups()
    if parent is None or not parent.is_dir():
        lack("needs memory control groups")
    group = parent / f"gangline-test-{os.getpid()}-{tmp_path.name[-20:]}"
    limit = "memory.limit_in_bytes" if "memory" in parent.parts else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(300 << 20))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        lack(f"no control group can be made: {error}")
    yield group
    subprocess.run(["rmdir", str(group)], check=False)


def test_a_kill_for_memory_is_told_from_others(gang: Gang, limited: Path) -> None:  # F3
    gang.script("""
        import os, signal
        if os.environ["GANGLINE_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        held = [bytearray(b"x") * (16 << 20) for _ in range(64)]
    """)
    join = textwrap.dedent(f"""
        import os, sys
        open({str(limited / "cgroup.procs")!r}, "w").write("0")
        os.execv(sys.argv[1], sys.argv[1:])
    """)
    gang.write_launch(procs_per_node=1, restarts={"max_infrastructure_restarts": 1, "backoff_s": 0.0})
    gang.start_agent(0, through=[sys.executable, "-c", join])
    gang.wait()
    plain: dict[str, Any] = gang.result(0)
    assert (plain["reason"], plain["signature"]) == ("killed", "killed")
    memory = gang.result(1)
    assert (memory["reason"], memory["signature"]) == ("out_of_memory", "kernel_memory_kill"), memory["message"]
    assert "by the kernel because memory ran out; its peak memory was" in memory["message"]


@pytest.mark.torch
def test_a_rank_that_raised_and_ends_slowly_is_to_blame(gang: Gang) -> None:
    gang.script("""
        import atexit, datetime, os, time
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))  # to connect may take as long as it takes
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), dist.group.WORLD)
        if os.environ["RANK"] == "1":
            atexit.register(time.sleep, 60)
            raise ValueError("the real cause")
        dist.all_reduce(torch.ones(1))
    """)
    result = gang.run_to_end(stop={"failure_grace_s": 1.0})
    assert result["first_failure"]["rank"] == 1, result["message"]
    assert "failed: ValueError: the real cause" in result["message"]


SLOW_END = """
    import datetime, os, sys, threading, time, traceback
    import torch, torch.distributed as dist
    import gangline
    dist.init_process_group("gloo")
    rank, way = dist.get_rank(), os.environ["WAY"]
    dist.all_reduce(torch.ones(1))  # to connect may take as long as it takes
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), dist.group.WORLD)
    gangline.progress(1)
    time.sleep(0.7)  # a step is reported well before
    try:
        if rank == 1:
            raise ValueError("the real cause")
    except ValueError as error:
        if way == "library":
            traceback.print_exc()
            time.sleep(600)
        if way == "threads":
            threading.Thread(target=time.sleep, args=(600,)).start()
        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(600)
        held = Slow()
        import atexit
        atexit.register(time.sleep, 600)
        if way == "raised":
            raise SystemExit("the real cause") from None
        sys.exit("the real cause")
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("way", "kind"),
    [("library", "ValueError"), ("exit", "SystemExit"), ("threads", "SystemExit"), ("raised", "LeftEarly")],
)
def test_a_rank_that_said_why_and_was_slow_to_go_is_to_blame(gang: Gang, way: str, kind: str) -> None:
    gang.script(SLOW_END)
    result = gang.run_to_end(start="auto", env={"WAY": way}, stop={"failure_grace_s": 1.0})
    failure = result["first_failure"]
    assert (failure["rank"], failure["error_type"]) == (1, kind), result["message"]
    assert "the real cause" in result["message"]
    assert (result["reason"], result["exit_code"]) == ("user_error", 1)


@pytest.mark.torch
def test_an_old_traceback_in_the_log_of_a_healthy_rank_is_no_blame(gang: Gang) -> None:
    """Rank 0 waits in vain; rank 1 had printed a traceback, got over it, made steps, and sleeps."""
    gang.script("""
        import datetime, os, time, traceback
        import torch, torch.distributed as dist
        import gangline
        dist.init_process_group("gloo")
        try:
            raise ValueError("got over it")
        except ValueError:
            if dist.get_rank() == 1:
                traceback.print_exc()
        time.sleep(0.7)
        dist.all_reduce(torch.ones(1))  # to connect may take as long as it takes
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), dist.group.WORLD)
        gangline.progress(1)
        if dist.get_rank() == 1:
            time.sleep(600)
        dist.all_reduce(torch.ones(1))
    """)
    result = gang.run_to_end(start="auto", stop={"failure_grace_s": 1.0})
    failure = result["first_failure"]
    assert (result["reason"], failure["rank"], failure["error_type"]) == ("hang", 1, "Hang"), result["message"]
    assert result["message"].startswith("Missing was rank 1 on node 0"), result["message"]


@pytest.mark.torch
def test_a_rank_that_leaves_the_others_with_0_is_named(gang: Gang) -> None:
    gang.script("""
        import os
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for step in range(10):
            if os.environ["RANK"] == "1" and step == 3:
                os._exit(0)  # torch's own end may abort when its peers are still there
            dist.all_reduce(torch.ones(1))
        dist.barrier()
    """)
    result = gang.run_to_end()
    assert (result["reason"], result["signature"], result["budget"]) == ("user_error", "left_early", "user")
    assert "ended with exit code 0 while rank 0 still communicated with it." in result["message"]
    assert "gloo/transport" not in result["message"]


def test_an_error_that_the_script_got_over_does_not_decide_and_blank_lines_hold_nobody_up(gang: Gang) -> None:
    gang.script("""
        import os, sys, traceback
        try:
            raise OSError(28, os.strerror(28))
        except OSError:
            traceback.print_exc()
        print("recovered, going on" + chr(10) * 20_000)
        sys.exit(3)
    """)
    result = gang.run_to_end(procs_per_node=1)
    assert (result["reason"], result["first_failure"]["error_type"]) == ("user_error", None)
    assert "failed with exit code 3" in result["message"]
