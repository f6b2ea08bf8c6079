"""In a container, the trampoline is the task to its orchestrator: it runs the hooks of the decorators that say so.

Ranks may run on other machines, or several times; what Argo Workflows reads from files of the pod, and Step Functions
from a table, is told once, when the gang has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .compat import begin_hooks, end_hooks, others
from .elsewhere import HOSTS, ORCHESTRATORS
from .task import GangTask

__all__ = ["orchestrated"]


@contextmanager
def orchestrated(obj: Any, task: GangTask, params: dict[str, Any]) -> Iterator[None]:
    """Have the block be the task, as far as @kubernetes, @batch and the orchestrator are concerned."""
    step = getattr(obj.flow, task.step)
    decorators = others(step.decorators, HOSTS | ORCHESTRATORS)
    begin_hooks(obj, task, decorators, params)
    is_ok = False
    try:
        yield
        is_ok = True
    finally:
        end_hooks(obj, task, decorators, params, is_ok=is_ok)
