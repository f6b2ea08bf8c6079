"""A torch program that the ranks' interpreter runs before the real ranks, to try devices and network.

One process for each rank. Prints one JSON line: a list of results. Must run alone: it is handed to the interpreter as
text, and knows nothing of Gangline. What is imported beside torch is the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

_CPU_BYTES = 16 << 20
_DEVICE_BYTES = 64 << 20
_MEMORY_SHARE = 0.5
_ROUNDS = 3
_EDGE = 1024


def main() -> None:
    """Run the checks that the arguments name: `CHECKS TIMEOUT_S FLOOR_BYTES_S`."""
    names, timeout_s, floor = sys.argv[1].split(","), float(sys.argv[2]), float(sys.argv[3])
    results: list[dict[str, Any]] = []
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        results = [_result(name, None, f"skipped: torch is not there ({error})") for name in names]
    else:
        if "device" in names:
            results.append(_guarded("device", _check_device, torch))
        if "allreduce" in names:
            results.append(_guarded("allreduce", _check_allreduce, torch, timeout_s, floor))
    sys.stdout.write(json.dumps(results) + "\n")


def _guarded(name: str, check: Any, *args: Any) -> dict[str, Any]:  # noqa: ANN401
    try:
        done: dict[str, Any] = check(*args)
    except Exception as error:  # noqa: BLE001 - told to the leader, which decides
        text = str(error).strip().splitlines()
        return _result(name, False, f"{type(error).__name__}: {text[0] if text else ''}")
    return done


def _result(name: str, ok: bool | None, text: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401, FBT001
    return {"check": name, "ok": ok, "text": text, **more}


def _check_device(torch: Any) -> dict[str, Any]:  # noqa: ANN401
    """Write patterns into half of the free memory of this rank's device, and read them back."""
    if not torch.cuda.is_available():
        return _result("device", None, "skipped: torch sees no accelerator")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local % torch.cuda.device_count())
    free, _ = torch.cuda.mem_get_info(device)
    count = int(free * _MEMORY_SHARE / max(1, _sharing(torch))) // 8
    memory = torch.empty(count, dtype=torch.int64, device=device)
    for pattern in (0x5555555555555555, -0x5555555555555556, 0, -1):
        memory.fill_(pattern)
        wrong = int((memory != pattern).sum())
        if wrong:
            return _result("device", False, f"{wrong} words of {device} do not hold what was written", measured=wrong)
    a = torch.ones(_EDGE, _EDGE, device=device)
    if not bool(((a @ a) == _EDGE).all()):
        return _result("device", False, f"{device} multiplies wrongly")
    return _result("device", True, f"{count * 8 / 1e9:.1f} GB tested", measured=count * 8)


def _sharing(torch: Any) -> int:  # noqa: ANN401
    """Ranks of this node on one device."""
    return -(-int(os.environ["LOCAL_WORLD_SIZE"]) // int(torch.cuda.device_count()))


def _check_allreduce(torch: Any, timeout_s: float, floor: float) -> dict[str, Any]:  # noqa: ANN401
    """Bytes a second of an all-reduce of all ranks, of the ranks of each node, and, if slow, between nodes."""
    dist = torch.distributed
    has_device = torch.cuda.is_available()
    device = torch.device("cpu")
    if has_device:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_device else "gloo", timeout=timedelta(seconds=timeout_s))
    world, each = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    size = _DEVICE_BYTES if has_device else _CPU_BYTES
    tensor = torch.ones(size // 4, device=device)
    local = None
    if 1 < each < world:
        groups = [dist.new_group(list(range(first, first + each))) for first in range(0, world, each)]
        local = _measure(torch, tensor, groups[int(os.environ["GROUP_RANK"])], size)
    speed = _measure(torch, tensor, None, size)
    agreed = torch.tensor([speed], device=device)
    dist.broadcast(agreed, 0)
    pairs: dict[int, float] = {}
    if float(agreed) < floor and world // each > 2:  # noqa: PLR2004 - of two nodes neither can be told from the other
        pairs = _measure_pairs(torch, tensor, world // each, each, size)
    dist.destroy_process_group()
    return _result("allreduce", True, f"{speed / 1e6:.0f} MB/s", measured=speed, local=local, pairs=pairs)


def _measure_pairs(torch: Any, tensor: Any, nodes: int, each: int, size: int) -> dict[int, float]:  # noqa: ANN401
    """Speed between the first ranks of neighbours in a ring of nodes; by the peer's node."""
    dist, rank = torch.distributed, torch.distributed.get_rank()
    found = {}
    for node in range(nodes):
        peers = [node * each, (node + 1) % nodes * each]
        group = dist.new_group(sorted(peers))
        if rank in peers:
            other = peers[0] if rank == peers[1] else peers[1]
            found[other // each] = _measure(torch, tensor, group, size)
        dist.barrier()
    return found


def _measure(torch: Any, tensor: Any, group: Any, size: int) -> float:  # noqa: ANN401
    """The best of a few rounds, after one that sets up connections."""
    best = 0.0
    for number in range(1 + _ROUNDS):
        began = time.perf_counter()
        torch.distributed.all_reduce(tensor, group=group)
        if tensor.is_cuda:
            torch.cuda.synchronize()
        if number:
            best = max(best, size / (time.perf_counter() - began))
        tensor.fill_(1)
    return best


if __name__ == "__main__":
    main()
