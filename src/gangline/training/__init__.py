"""Behind `import gangline`, inside a rank or alone: who am I, log, save, resume, stop.

Nothing in here raises into training because of the platform: what goes wrong is said once in the rank's log and
recorded as a warning. Each name is loaded from its module when it is first used. Standard library only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.training.context import Context
    from gangline.training.records import log, phase, progress
    from gangline.training.resuming import Checkpoint, latest_checkpoint
    from gangline.training.saving import checkpoint
    from gangline.training.session import current
    from gangline.training.stopping import should_stop

__all__ = [
    "Checkpoint",
    "Context",
    "checkpoint",
    "current",
    "latest_checkpoint",
    "log",
    "phase",
    "progress",
    "should_stop",
]

_MODULES = {
    "Checkpoint": "resuming",
    "Context": "context",
    "checkpoint": "saving",
    "current": "session",
    "latest_checkpoint": "resuming",
    "log": "records",
    "phase": "records",
    "progress": "records",
    "should_stop": "stopping",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module `gangline.training` has no attribute `{name}`")
    found = globals()[name] = getattr(import_module(f"gangline.training.{_MODULES[name]}"), name)
    return found
