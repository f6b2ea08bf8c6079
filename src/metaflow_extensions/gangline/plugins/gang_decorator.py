"""`@gang`: the step's body runs on every rank of a gang, and rank 0's artifacts are the step's.

Loaded by every `import metaflow`: Gangline's client is imported where it is used.
"""

from __future__ import annotations

import sys
from typing import Any

from metaflow.decorators import StepDecorator

from .compat import GangError, explain_caught, mute_decorator, mute_task, others
from .task import task_of_rank

__all__ = ["GangDecorator"]

_ELSEWHERE = frozenset({"batch", "kubernetes", "titus", "slurm"})
_NOT_IN_A_RANK = frozenset({"catch", "retry", "timeout"})
"""The gang is what fails, is tried again and has a time limit, not a rank of it."""
_RANK_0_ALONE = frozenset({"card"})


class GangDecorator(StepDecorator):
    """Run the step as a gang of Gangline: on every rank its body, with `current.gang`.

    Parameters
    ----------
    nodes : int, default 1
        Nodes in the gang.
    procs_per_node : int, optional
        Ranks on each node; default: one per GPU that is asked for, else 1.
    pool : str, default "local"
        Pool of machines.
    lease_s : float, default 120
        How long the run goes on when the flow is gone.

    Every other option of a run spec has its own name: `max_restarts`, `hang_timeout_s`, `strategy`, `time_limit_s`,
    `checkpoint_path`, ...
    """

    name = "gang"
    defaults: dict[str, Any] = {}  # noqa: RUF012 - Metaflow's contract

    def __init__(
        self, attributes: dict[str, Any] | None = None, statically_defined: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(None, statically_defined, **kwargs)
        self.attributes.update(attributes or {})
        self._user_defined_attributes = {*getattr(self, "_user_defined_attributes", ()), *(attributes or {})}
        self._step = ""

    def step_init(self, flow: Any, graph: Any, step: str, decos: list[Any], *more: Any) -> None:
        _environment, flow_datastore, _logger = more
        self._step = step
        self._refuse_others(graph, step, decos)
        mine = task_of_rank()
        if mine is not None and mine.step == step and mine.flow == flow.name:
            self._become_rank(decos, flow_datastore)
        elif mine is None:
            self._check_options(step)
            for catch in others(decos, frozenset({"catch"})):
                explain_caught(catch, self._why_it_failed)

    def _refuse_others(self, graph: Any, step: str, decos: list[Any]) -> None:
        found = sorted({one.name for one in others(decos, _ELSEWHERE)})
        if found:
            raise GangError(
                f"Step *{step}* has @gang and @{found[0]}: both say where it runs. Keep @gang, and name the machines "
                "by its `pool`."
            )
        if getattr(graph[step], "parallel_step", False):
            raise GangError(
                f"Step *{step}* has @gang and is entered by num_parallel. A gang is one task: write "
                f"`self.next(self.{step})` without num_parallel, and `nodes=` in @gang."
            )

    def _check_options(self, step: str) -> None:
        from gangline.client import GanglineError  # noqa: PLC0415 - not at each import of metaflow
        from gangline.client.options import check_options  # noqa: PLC0415 - as above

        options = {name: value for name, value in self.attributes.items() if name != "lease_s"}
        try:
            check_options(options, where=f"@gang of step {step}")
        except GanglineError as error:
            raise GangError(str(error)) from None
        lease_s = self.attributes.get("lease_s")
        if lease_s is not None and not (isinstance(lease_s, int | float) and lease_s >= 1):
            raise GangError(f"@gang of step {step}: `lease_s` is {lease_s!r}. Give it a number of seconds from 1 up.")

    def _become_rank(self, decos: list[Any], flow_datastore: Any) -> None:
        from gangline import current  # noqa: PLC0415 - not at each import of metaflow

        names = _NOT_IN_A_RANK if current().rank == 0 else _NOT_IN_A_RANK | _RANK_0_ALONE
        for other in others(decos, names):
            mute_decorator(other)
        if current().rank != 0:
            mute_task(flow_datastore)

    def _why_it_failed(self) -> Exception | None:
        from .trampoline import find_failure  # noqa: PLC0415 - only after a failure

        return find_failure(self._step)

    def runtime_step_cli(self, cli_args: Any, retry_count: int, max_user_code_retries: int, ubf_context: Any) -> None:
        if retry_count <= max_user_code_retries:  # else a fallback of @catch runs here
            cli_args.commands = ["gang", "step"]
            cli_args.entrypoint[0] = sys.executable

    def task_pre_step(self, *_: Any) -> None:
        mine = task_of_rank()
        if mine is not None:
            from .ranks import show_gang  # noqa: PLC0415 - in ranks alone

            show_gang(mine)

    def task_decorate(self, step_func: Any, *more: Any) -> Any:
        _flow, _graph, retry_count, max_user_code_retries, _ubf_context = more
        mine = task_of_rank()
        if mine is not None:
            from .ranks import gated  # noqa: PLC0415 - in ranks alone

            return gated(step_func)
        if retry_count > max_user_code_retries:
            return step_func
        raise GangError(
            f"Step *{self._step}* has @gang, and was started as one process, where a gang was to be: by an "
            "orchestrator that does not know @gang. Run the flow with `run`, `resume` or the Runner; Argo Workflows "
            "and Step Functions cannot start gangs yet."
        )
