from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.agent.classify import RankEnd, decide_port_taken, decide_verdict, exit_status, is_consequence, signal_name
from gangline.agent.memory import Memory, format_bytes
from gangline.domain.phase import Reason

BASE = RankEnd(rank=2, node=1, host="gpu7", exit_code=1, signal=None)


def end(**changes: Any) -> RankEnd:
    return replace(BASE, **changes)


def killed(*, peak: int, used: int) -> RankEnd:
    """Ended by SIGKILL on a node of 16 GiB, of which others use that much."""
    memory = Memory(limit_bytes=16 << 30, used_bytes=used)
    return end(exit_code=None, signal=9, peak_rss_bytes=peak, memory=memory)


def error(kind: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "message": message, "traceback": ""}


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        (end(log_tail="a\nstep 7\n"), Reason.USER_ERROR, 'failed with exit code 1; its last line is "step 7".'),
        (
            end(error=error("", "Connection closed by peer")),
            Reason.COMMUNICATION,
            "lost the connection to another rank",
        ),
        (end(log_tail="\x1b[1mstep 7\x1b[0m\n\0\n"), Reason.USER_ERROR, 'exit code 1; its last line is "step 7".'),
        (end(exit_code=None, signal=15, error=error("KeyError", "x")), Reason.USER_ERROR, "failed: KeyError: x."),
        (
            end(exit_code=2, log_tail="usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --stepz 10"),
            Reason.USER_ERROR,
            "did not understand its arguments: unrecognized arguments: --stepz 10.",
        ),
        (end(exit_code=None, signal=77), Reason.USER_ERROR, "failed by signal 77."),
        (
            end(
                error={**error("RuntimeError", "save failed"), "causes": [error("OSError", "No space left on device")]}
            ),
            Reason.STORAGE,
            "the disk is full: OSError: No space left on device (then RuntimeError).",
        ),
        (end(), Reason.USER_ERROR, "Rank 2 on node 1 (gpu7) failed with exit code 1, and its log is empty."),
        (
            end(error=error("RuntimeError", "config is broken:\n  missing key\n")),
            Reason.USER_ERROR,
            "failed: RuntimeError: config is broken: missing key.",
        ),
        (end(error=error("ValueError", "x" * 400)), Reason.USER_ERROR, "xxx…."),
        (
            end(error={**error("a.ChildFailedError", "\n==\ntrain.py FAILED"), "causes": [error("KeyError", "'lr'")]}),
            Reason.USER_ERROR,
            "failed: KeyError: 'lr' (then a.ChildFailedError).",
        ),
        (
            end(
                error={
                    **error("ValueError", "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback"),
                    "causes": [error("ValueError", "bad image 7")],
                }
            ),
            Reason.USER_ERROR,
            "failed: ValueError: bad image 7 (in a worker process).",
        ),
        (end(error=error("ValueError", "bad data\nmore")), Reason.USER_ERROR, "ValueError: bad data."),
        (end(exit_code=127), Reason.USER_ERROR, "not found"),
        (end(error=error("MemoryError")), Reason.OUT_OF_MEMORY, "ran out of memory: MemoryError."),
        (
            end(error=error("MemoryError"), peak_rss_bytes=1 << 30),
            Reason.OUT_OF_MEMORY,
            "ran out of memory: MemoryError; its peak memory was 1.0 GiB.",
        ),
        (end(error=error("torch.OutOfMemoryError", "CUDA out of memory")), Reason.OUT_OF_MEMORY, "CUDA out of memory"),
        (end(error=error("RuntimeError", "CUDA error: out of memory")), Reason.OUT_OF_MEMORY, "memory"),
        (end(log_tail="...\ntorch.cuda: CUDA out of memory. Tried"), Reason.OUT_OF_MEMORY, "memory"),
        (end(error=error("ValueError", "CUDA out of memory")), Reason.USER_ERROR, "ValueError"),
        (end(error=error("KeyError", "x"), log_tail="MemoryError: earlier"), Reason.USER_ERROR, "KeyError"),
        (end(error=error("OSError", "[Errno 28] No space left on device")), Reason.STORAGE, "could not write"),
        (end(error=error("torch.distributed.DistNetworkError", "timed out")), Reason.RENDEZVOUS_FAILED, "join"),
        (end(exit_code=None, signal=9), Reason.KILLED, "who sent it is not known: `kill -9`, the kernel, an operator."),
        (killed(peak=281 << 20, used=2 << 30), Reason.KILLED, "who sent it is not known"),
        (killed(peak=12 << 30, used=3 << 30), Reason.KILLED, "probably the kernel, since with it nearly all memory"),
        (killed(peak=4 << 30, used=11 << 30), Reason.KILLED, "in use (16.0 GiB)"),
        (end(exit_code=None, signal=9, peak_rss_bytes=3 << 30), Reason.KILLED, "peak memory was 3.0 GiB"),
        (end(exit_code=None, signal=9, kernel_oom_kills=1), Reason.OUT_OF_MEMORY, "by the kernel"),
        (end(exit_code=137), Reason.KILLED, "(137)"),
        (end(exit_code=None, signal=11), Reason.USER_ERROR, "(gpu7) crashed (SIGSEGV)."),
        (end(exit_code=None, signal=15), Reason.KILLED, "ended by SIGTERM"),
    ],
)
def test_reasons_and_sentences(given: RankEnd, reason: Reason, words: str) -> None:
    verdict = decide_verdict(given)
    assert verdict.reason is reason
    assert words in verdict.message
    assert verdict.message.startswith("Rank 2 on node 1 (gpu7) ")
    assert verdict.message.endswith(".")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen failed. port: 20001, code: -98, name: EADDRINUSE", True),
        ("[::]:20001: Address already in use", True),
        ("port 120001: address already in use", False),
        ("port 8080: address already in use", False),
        ("connected to 20001", False),
    ],
)
def test_only_the_chosen_port_counts_as_taken(text: str, *, expected: bool) -> None:
    assert decide_port_taken(end(log_tail=text), 20001) is expected
    assert decide_port_taken(end(error=error("RuntimeError", text)), 20001) is expected


IN_MULTIPROCESSING = 'File "/usr/lib/python3.11/multiprocessing/connection.py", line 384, in _recv\n'
IN_LOADER = f'File "/venv/site-packages/torch/utils/data/dataloader.py", line 1300, in _get_data\n{IN_MULTIPROCESSING}'
IN_HTTP = 'File "/usr/lib/python3.11/http/client.py", line 279, in _read_status\n'


@pytest.mark.parametrize(
    ("trace", "children", "reason", "words"),
    [
        (IN_LOADER, [(7, -11)], Reason.USER_ERROR, "lost a data loader worker, which crashed (SIGSEGV): Connection"),
        (IN_LOADER, [(7, -9)], Reason.KILLED, "lost a data loader worker, which somebody killed: Connection"),
        (IN_LOADER, [(7, -7)], Reason.OUT_OF_MEMORY, "ran out of shared memory"),
        (IN_LOADER, [(7, 3)], Reason.USER_ERROR, "lost a data loader worker, which ended by itself"),
        (IN_LOADER, [], Reason.USER_ERROR, "lost a process that it had started: Connection"),
        (IN_MULTIPROCESSING, [(6, -15), (7, -11), (8, -15)], Reason.USER_ERROR, "had started, which crashed (SIGSEGV)"),
        (IN_MULTIPROCESSING, [(7, 3)], Reason.USER_ERROR, "lost a process that it had started (exit code 3): Connec"),
        (IN_HTTP, [(7, -11)], Reason.COMMUNICATION, "lost the connection to a service that its code uses: Connection"),
        ("", [(7, -11)], Reason.COMMUNICATION, "lost a connection of its own code: ConnectionResetError: [Errno 104]"),
    ],
)
def test_a_connection_of_python_is_none_to_another_rank(
    trace: str, children: list[tuple[int, int]], reason: Reason, words: str
) -> None:
    known = [{"pid": pid, "exit_code": code} for pid, code in children]
    told = {**error("ConnectionResetError", "[Errno 104] Connection reset by peer"), "traceback": trace}
    verdict = decide_verdict(end(error={**told, "children": known}))
    assert words in verdict.message
    assert verdict.reason is reason
    assert is_consequence(end(error={**told, "children": known})) == (trace == "")


def test_an_exception_that_was_only_printed_is_told_as_one_that_may_be_why() -> None:
    printed = {**error("ValueError", "noise"), "in_log": True}
    verdict = decide_verdict(end(exit_code=5, error=printed))
    assert verdict.message.endswith(
        "failed with exit code 5; the last exception in its log may or may not be why: ValueError: noise."
    )
    known = decide_verdict(end(exit_code=5, error={**error("MemoryError"), "in_log": True}))
    assert "may or may not be why (it ran out of memory): MemoryError" in known.message


def test_a_kill_for_memory_beside_the_rank_is_told() -> None:
    memory = Memory(limit_bytes=600 << 20, used_bytes=100 << 20)
    killed_too = end(exit_code=3, kernel_oom_kills=1, memory=memory)
    assert decide_verdict(killed_too).message.endswith(
        "exit code 3, and its log is empty. The kernel has killed for memory there meanwhile, which may be why."
    )
    killed_itself = end(exit_code=None, signal=9, peak_rss_bytes=500 << 20, kernel_oom_kills=1, memory=memory)
    assert decide_verdict(killed_itself).message.endswith(
        "because memory ran out; its peak memory was 500.0 MiB, and all on its node may use 600.0 MiB."
    )


def test_small_words() -> None:
    assert (exit_status(3, None), exit_status(None, 9)) == (3, 137)
    assert (signal_name(9), signal_name(None), signal_name(250)) == ("SIGKILL", None, "signal 250")
    assert [format_bytes(size) for size in (10, 1536, 5 << 40)] == ["10 bytes", "1.5 KiB", "5.0 TiB"]
