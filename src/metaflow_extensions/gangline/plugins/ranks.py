"""In a rank: `current.gang`, and the gate behind the step's body. Speaks to `gangline`, the training API, alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from metaflow import current

from gangline import current as current_rank
from gangline import latest_checkpoint
from gangline.training.completion import NotComplete, wait_for_gang

from .compat import GangError
from .task import GangTask

__all__ = ["Gang", "gated", "show_gang"]


class Gang:
    """`current.gang`: who this rank is, and where its gang stands."""

    def __init__(self, task: GangTask) -> None:
        context = current_rank()
        self.rank = context.rank
        self.world_size = context.world_size
        self.local_rank = context.local_rank
        self.node = context.node
        self.num_nodes = context.num_nodes
        self.run_id = context.run_id
        """Of the Gangline run, the same on all ranks."""
        self.pool = task.pool
        self.attempt = task.begun + context.attempt
        """How often the gang was started before, in this attempt of the task and in earlier ones."""

    @property
    def world(self) -> int:
        return self.world_size

    @property
    def checkpoint(self) -> str | None:
        """Folder of the checkpoint to start from, the same on all ranks; None: start fresh."""
        found = latest_checkpoint()
        return None if found is None else str(found.path)

    @property
    def checkpoint_uri(self) -> str | None:
        """The newest complete checkpoint now, as `file:///…/step-…`; None: there is none."""
        from gangline.training.resuming import newest_checkpoint  # noqa: PLC0415 - asked once or never

        found = newest_checkpoint()
        return None if found is None else found.path.absolute().as_uri()

    def __repr__(self) -> str:
        return f"<gang {self.run_id}: rank {self.rank} of {self.world_size}, attempt {self.attempt}>"


def show_gang(task: GangTask) -> None:
    """Make `current.gang`."""
    current._update_env({"gang": Gang(task)})  # noqa: SLF001 - what every decorator of Metaflow does


def gated(step_func: Callable[..., Any]) -> Callable[..., Any]:
    """The body of the step, which on rank 0 returns only once the whole gang is known to be good.

    What the body left is stored after that: a gang that fails later must not look as if it had succeeded.
    """

    @functools.wraps(step_func)
    def body(*args: Any, **kwargs: Any) -> Any:
        result = step_func(*args, **kwargs)
        if current_rank().rank == 0:
            try:
                wait_for_gang()
            except NotComplete as error:
                raise GangError(str(error)) from None
        return result

    return body
