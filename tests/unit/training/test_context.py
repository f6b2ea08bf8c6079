from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gangline
from gangline.training.context import parse_context


def test_alone_it_is_rank_0_of_1() -> None:
    context = parse_context({})
    assert (context.rank, context.world_size, context.local_rank, context.node, context.num_nodes) == (0, 1, 0, 0, 1)
    assert (context.attempt, context.run_id, context.run_dir, context.resume) == (0, "local", None, None)
    assert context.checkpoint_dir == Path.cwd() / "checkpoints"
    assert not context.is_gangline


def test_under_torchrun() -> None:
    context = parse_context(
        {
            "RANK": "5",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "8",
            "LOCAL_WORLD_SIZE": "4",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "TORCHELASTIC_RUN_ID": "none",
        }
    )
    assert (context.rank, context.local_rank, context.node, context.num_nodes, context.attempt) == (5, 1, 1, 2, 3)
    assert not context.is_gangline


def test_under_gangline() -> None:
    context = parse_context(
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GANGLINE_NODE": "1",
            "NNODES": "2",
            "GANGLINE_RUN_ID": "llama-7k3q",
            "GANGLINE_RUN_NAME": "Llama",
            "GANGLINE_ATTEMPT": "2",
            "TORCHELASTIC_RESTART_COUNT": "1",
            "GANGLINE_RUN_DIR": "/runs/llama",
            "GANGLINE_CHECKPOINT_DIR": "/ckpt",
            "GANGLINE_KEEP_LAST": "0",
            "GANGLINE_RESUME": "/ckpt/step-0000000100.attempt-001",
        }
    )
    assert (context.rank, context.node, context.num_nodes, context.attempt) == (3, 1, 2, 2)
    assert (context.run_id, context.run_name, context.run_dir) == ("llama-7k3q", "Llama", Path("/runs/llama"))
    assert (context.checkpoint_dir, context.keep_last) == (Path("/ckpt"), 0)
    assert context.resume == Path("/ckpt/step-0000000100.attempt-001")
    assert context.is_gangline


def test_nonsense_counts_as_not_set() -> None:
    context = parse_context({"RANK": "x", "WORLD_SIZE": "-1", "LOCAL_RANK": "", "GANGLINE_ATTEMPT": "²"})
    assert (context.rank, context.world_size, context.local_rank, context.attempt) == (0, 1, 0, 0)


def test_current_is_read_once(as_rank: Callable[..., Path]) -> None:
    as_rank(3, 4)
    assert gangline.current().rank == 3
    assert gangline.current() is gangline.current()
