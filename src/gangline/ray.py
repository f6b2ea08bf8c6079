"""What Ray Train reports, in Gangline's metrics and checkpoints: under `--strategy ray` without a word in the script.

`ray.train.report(metrics, checkpoint=...)` becomes `gangline.log` with the numbers of worker 0, and a checkpoint that
`gangline checkpoints` lists and `gangline.latest_checkpoint()` finds. Needs Ray, in the interpreter of the run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gangline
from gangline.training.records import warn

if TYPE_CHECKING:

    class UserCallback: ...

    class ReportCallback: ...

else:
    from ray.train import UserCallback

    try:
        from ray.train.v2._internal.execution.callback import ReportCallback
    except ImportError:  # a Ray that is laid out otherwise: `RunConfig(callbacks=[TrainReports()])` works there

        class ReportCallback: ...


__all__ = ["TrainReports"]

_STEP_NAMES = ("step", "global_step", "training_iteration", "epoch")


class TrainReports(UserCallback, ReportCallback):
    """Called by the controller of a training run, which is one process.

    Ray makes it itself (`RAY_TRAIN_CALLBACKS`), as a callback of its own kind; or a script does, in its `RunConfig`.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._warned = False

    def after_report(
        self,
        training_report: Any = None,  # noqa: ANN401
        metrics: Sequence[Mapping[str, Any]] = (),
        *,
        run_context: Any = None,  # noqa: ANN401, ARG002
        checkpoint: Any = None,  # noqa: ANN401
    ) -> None:
        """All workers have reported."""
        checkpoint = checkpoint if training_report is None else training_report.checkpoint
        told = metrics[0] if metrics else {}
        numbers = {name: value for name, value in told.items() if isinstance(value, Real)}
        step = self._decide_step(numbers)
        gangline.log({name: float(value) for name, value in numbers.items()}, step=step)
        gangline.progress(step)
        if checkpoint is not None:
            self._keep(checkpoint, step)

    def _decide_step(self, numbers: Mapping[str, Any]) -> int:
        """What the script calls its step; else the count of reports, going on from where the attempt began."""
        named = next((int(numbers[name]) for name in _STEP_NAMES if name in numbers), None)
        if named is None:
            begun = gangline.latest_checkpoint() if self._newest < 0 else None
            named = (begun.step if begun is not None else self._newest) + 1
        self._newest = named
        return named

    def _keep(self, checkpoint: Any, step: int) -> None:  # noqa: ANN401
        source = Path(checkpoint.path)
        if not source.is_dir():
            if not self._warned:
                self._warned = True
                warn(
                    f"checkpoints of Ray Train lie in {checkpoint.path}, which is no folder here: they are Ray's alone"
                )
            return
        with gangline.checkpoint(step, rank0_only=True) as path:
            shutil.copytree(source, path, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """No second copy where both lie on one file system; Ray may remove its name of the file."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
