"""What training code imports: `import gangline`. It costs a millisecond, and works without a platform too.

Everything is loaded when it is first used; nothing here may import more than the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would cost more than all the rest here

if TYPE_CHECKING:
    from gangline.training import (
        Checkpoint,
        Context,
        checkpoint,
        current,
        latest_checkpoint,
        log,
        phase,
        progress,
        should_stop,
    )

__all__ = [
    "Checkpoint",
    "Context",
    "__version__",
    "checkpoint",
    "current",
    "latest_checkpoint",
    "log",
    "phase",
    "progress",
    "should_stop",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module `gangline` has no attribute `{name}`")
    from gangline import training  # noqa: PLC0415 - loaded at first use

    found = globals()[name] = getattr(training, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
