"""Who this process is in its gang, read from the environment that an agent, torchrun or nobody has set.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Context", "parse_context"]

_DEFAULT_KEEP_LAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One rank's view of its gang. Without a platform: rank 0 of 1, attempt 0 of the run `local`."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    num_nodes: int = 1
    attempt: int = 0
    """Number of this start of the gang, from 0; under torchrun its restart count."""
    run_id: str = "local"
    run_name: str = "local"
    run_dir: Path | None = None
    """Folder of the run, where there is one: only then are metrics written. A person's shell beside a rank has none."""
    checkpoint_dir: Path = Path("checkpoints")
    """Absolute; by default `./checkpoints` when the script runs without Gangline."""
    keep_last: int = _DEFAULT_KEEP_LAST
    """Newest checkpoints that are kept; 0 keeps all."""
    branch_attempt: int = 0
    """Checkpoints of older attempts lie on another branch: a person chose an earlier one to go on from."""
    resume: Path | None = None
    """Checkpoint that this attempt starts from, the same on all ranks; `latest_checkpoint` also works alone."""
    is_gangline: bool = False
    """Whether a Gangline agent started this process."""


def parse_context(env: Mapping[str, str]) -> Context:
    """Read the environment contract; what is missing or no number counts as not set."""
    world_size = max(1, _number(env, "WORLD_SIZE", default=1))
    local_world_size = max(1, _number(env, "LOCAL_WORLD_SIZE", default=world_size))
    run_id = env.get("GANGLINE_RUN_ID", "")
    return Context(
        rank=_number(env, "RANK"),
        local_rank=_number(env, "LOCAL_RANK"),
        world_size=world_size,
        local_world_size=local_world_size,
        node=_number(env, "GANGLINE_NODE", "NODE_RANK", "GROUP_RANK"),
        num_nodes=_number(env, "NNODES", "GROUP_WORLD_SIZE", default=max(1, world_size // local_world_size)),
        attempt=_number(env, "GANGLINE_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"),
        run_id=run_id or "local",
        run_name=env.get("GANGLINE_RUN_NAME") or run_id or "local",
        run_dir=None if env.get("GANGLINE_SHELL") else _path(env, "GANGLINE_RUN_DIR"),
        checkpoint_dir=_path(env, "GANGLINE_CHECKPOINT_DIR") or Path("checkpoints").absolute(),
        keep_last=_number(env, "GANGLINE_KEEP_LAST", default=_DEFAULT_KEEP_LAST),
        branch_attempt=_number(env, "GANGLINE_BRANCH_ATTEMPT"),
        resume=_path(env, "GANGLINE_RESUME"),
        is_gangline=bool(run_id),
    )


def _number(env: Mapping[str, str], *names: str, default: int = 0) -> int:
    """The first of the variables that holds a number >= 0."""
    for name in names:
        text = env.get(name, "").strip()
        if text.isascii() and text.isdigit():
            return int(text)
    return default


def _path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name, "")
    return Path(text).absolute() if text else None
