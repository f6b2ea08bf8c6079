"""`@gang`: the step's body runs on every rank of a gang, and rank 0's artifacts are the step's.

Loaded by every `import metaflow`: Gangline's client is imported where it is used.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from metaflow.decorators import StepDecorator

from .asked import read_resources
from .compat import (
    GangError,
    code_content,
    explain_caught,
    mute_decorator,
    mute_end,
    mute_task,
    others,
)
from .elsewhere import HOSTS, ORCHESTRATORS, is_there, mounts_of, trampoline_arguments
from .reach import check_folder, hand_metadata_over, refuse_own_folder
from .task import BEGAN, CARD, LOCAL, OWN, GangTask, task_of_rank

__all__ = ["GangDecorator"]

_ELSEWHERE = frozenset({"titus", "slurm"})
_NOT_IN_A_RANK = frozenset({"catch", "retry", "timeout"})
"""The gang is what fails, is tried again and has a time limit, not a rank of it."""
_RANK_0_ALONE = frozenset({"card"})
_NO_RANK = HOSTS
"""The trampoline is the task to them."""


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
    card : bool, default True
        Draw the card `gangline.run` while the gang runs.
    volume : str, optional
        Folder of the container of a step with @kubernetes or @batch that outlives it: the run, its logs and its
        checkpoints lie there.

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
        self._host: Any = None
        self._kept: tuple[Any, Any] | None = None
        """Of the task that this process runs: its metadata and its datastore."""

    def step_init(self, flow: Any, graph: Any, step: str, decos: list[Any], *more: Any) -> None:
        _environment, flow_datastore, _logger = more
        self._step = step
        self._refuse_others(graph, step, decos)
        mine = task_of_rank()
        if mine is not None and mine.step == step and mine.flow == flow.name:
            self._become_rank(mine, decos, flow_datastore)
        elif mine is None:
            self._check_options(step)
            if not self._runs_here():
                read_resources(getattr(flow, step), self.attributes, where=step)
            self._host = next(iter(others(decos, HOSTS)), None)
            if self._host is not None:
                self._check_container(step, decos)
            refuse_own_folder(step, self.attributes.get("pool") or LOCAL, flow_datastore)
            self._become_trampoline(step)
            for catch in others(decos, frozenset({"catch"})):
                explain_caught(catch, lambda: self._why_it_failed(flow))

    def _refuse_others(self, graph: Any, step: str, decos: list[Any]) -> None:
        found = sorted({one.name for one in others(decos, _ELSEWHERE)})
        if found:
            raise GangError(
                f"Step *{step}* has @gang and @{found[0]}: both say where it runs. Keep @gang, and name the machines "
                "by its `pool`."
            )
        if any(one.attributes.get("type") == CARD for one in others(decos, _RANK_0_ALONE)):
            raise GangError(
                f"Step *{step}* has @gang, which draws the card {CARD} by itself. Leave @card(type={CARD!r}) out; to "
                "be without that card, write card=False in @gang."
            )
        if getattr(graph[step], "parallel_step", False):
            raise GangError(
                f"Step *{step}* has @gang and is entered by num_parallel. A gang is one task: write "
                f"`self.next(self.{step})` without num_parallel, and `nodes=` in @gang."
            )

    def _check_options(self, step: str) -> None:
        from gangline.client import GanglineError  # noqa: PLC0415 - not at each import of metaflow
        from gangline.client.options import check_options  # noqa: PLC0415 - as above

        options = {name: value for name, value in self.attributes.items() if name not in OWN}
        try:
            check_options(options, where=f"@gang of step {step}")
        except GanglineError as error:
            raise GangError(str(error)) from None
        lease_s = self.attributes.get("lease_s")
        if lease_s is not None and not (isinstance(lease_s, int | float) and lease_s >= 1):
            raise GangError(f"@gang of step {step}: `lease_s` is {lease_s!r}. Give it a number of seconds from 1 up.")
        if not isinstance(self.attributes.get("card", True), bool):
            raise GangError(f"@gang of step {step}: `card` is {self.attributes['card']!r}. Give it True or False.")

    def _check_container(self, step: str, decos: list[Any]) -> None:
        """Refuse what a container cannot do, before it is deployed."""
        if not self._runs_here():
            return
        options = self.attributes
        nodes = options.get("nodes") or options.get("num_nodes") or options.get("nnodes") or 1
        if str(nodes) != "1":
            raise GangError(
                f"Step *{step}* has @gang(nodes={nodes}) and @{self._host.name}: its container is one node. Name the "
                "machines by a `pool`, or leave `nodes` out and ask for ranks by `procs_per_node`."
            )
        path, volume = options.get("checkpoint_path") or options.get("path"), options.get("volume")
        folders = [*mounts_of(decos), *([str(volume)] if volume else [])]
        if path is not None and not is_there(str(path), folders):
            raise GangError(
                f"Step *{step}* keeps checkpoints in {path}, on the disk of its container, and that is lost with it. "
                f"Mount a volume there by @{self._host.name}, or name its folder by `volume=`."
            )

    def _runs_here(self) -> bool:
        """Whether the gang runs in the step's own container, and not in a pool."""
        return (self.attributes.get("pool") or LOCAL) == LOCAL

    def _become_trampoline(self, step: str) -> None:
        """Where an orchestrator has started the step itself: this process goes on as what starts the gang."""
        arguments = trampoline_arguments(sys.argv, step)
        if arguments is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - our own arguments, without a shell

    def _become_rank(self, mine: GangTask, decos: list[Any], flow_datastore: Any) -> None:
        from gangline import current  # noqa: PLC0415 - not at each import of metaflow

        check_folder(mine, flow_datastore)
        names = _NOT_IN_A_RANK | _NO_RANK
        for other in others(decos, names if current().rank == 0 else names | _RANK_0_ALONE):
            mute_decorator(other)
        for other in others(decos, ORCHESTRATORS):
            mute_end(other)
        if current().rank != 0:
            mute_task(flow_datastore)

    def _why_it_failed(self, flow: Any) -> Exception | None:
        from .trampoline import find_failure  # noqa: PLC0415 - only after a failure

        return find_failure(flow, self._step)

    def runtime_init(self, *_: Any) -> None:
        os.environ[BEGAN] = repr(time.time())

    def runtime_step_cli(self, cli_args: Any, retry_count: int, max_user_code_retries: int, ubf_context: Any) -> None:
        if self._host is None and retry_count <= max_user_code_retries:  # else a fallback of @catch runs here
            cli_args.commands = ["gang", "step"]
            cli_args.entrypoint[0] = sys.executable

    def package_init(self, flow: Any, step_name: str, environment: Any) -> None:
        """Look at the step once more: to what Argo Workflows and Step Functions get, they add decorators at the end."""
        decorators = getattr(flow, step_name).decorators
        self._host = next(iter(others(decorators, HOSTS)), None)
        if self._host is None:
            return
        self._check_container(step_name, decorators)
        if self._runs_here() and not {"volume", "checkpoint_path", "path"} & self.attributes.keys():
            sys.stderr.write(
                f"@gang of step {step_name}: checkpoints lie on the disk of its container and are lost with it: a "
                "retry begins anew. `volume=` names a mounted folder that keeps them.\n"
            )

    def add_to_package(self) -> list[tuple[Any, ...]]:
        if self._host is None:
            return []
        from .shipped import files_to_ship  # noqa: PLC0415 - where packages are made alone

        return [(path, name, code_content()) for path, name in files_to_ship()]

    def task_pre_step(self, step_name: str, task_datastore: Any, metadata: Any, *_: Any) -> None:
        mine = task_of_rank()
        self._kept = (metadata, task_datastore)
        if mine is not None:
            from .ranks import show_gang  # noqa: PLC0415 - in ranks alone

            show_gang(mine)

    def task_finished(self, step_name: str, flow: Any, graph: Any, is_task_ok: bool, *_: Any) -> None:
        mine = task_of_rank()
        if mine is not None and is_task_ok and self._kept is not None:
            from gangline import current  # noqa: PLC0415 - in ranks alone

            if current().rank == 0:
                hand_metadata_over(mine, *self._kept)

    def task_decorate(self, step_func: Any, *more: Any) -> Any:
        _flow, _graph, retry_count, max_user_code_retries, _ubf_context = more
        mine = task_of_rank()
        if mine is not None:
            from .ranks import gated  # noqa: PLC0415 - in ranks alone

            return gated(step_func)
        if retry_count > max_user_code_retries:
            return step_func
        raise GangError(
            f"Step *{self._step}* has @gang, and was started as one process, where a gang was to be: by something that "
            "knows neither. Run the flow with `run`, `resume`, the Runner, Argo Workflows or Step Functions."
        )
