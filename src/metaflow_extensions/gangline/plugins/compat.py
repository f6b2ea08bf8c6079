"""What Metaflow does not promise to keep (Netflix/metaflow#1146), in one place but for two attributes.

Run with 2.18.13, 2.19.23 and 2.19.39. Imports Metaflow alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from metaflow import current
from metaflow._vendor import click
from metaflow.exception import MetaflowException
from metaflow.mflog import TASK_LOG_SOURCE
from metaflow.mflog.mflog import decorate
from metaflow.util import get_username, resolve_identity

__all__ = [
    "GangError",
    "attributes_of",
    "begin_hooks",
    "click",
    "code_content",
    "decorate_line",
    "end_hooks",
    "explain_caught",
    "foreach_depth",
    "local_sysroot",
    "log_store",
    "mute_decorator",
    "mute_end",
    "mute_task",
    "named_decorator",
    "others",
    "register",
    "step_params",
    "username",
]

_WRITES = ("_save_file", "persist", "save_artifacts", "done")
"""What a task's datastore writes with."""
_NEXT = ("_transition", "_foreach_num_splits", "_parallel_ubf_iter")
"""Results of a step that say what comes next."""
_REGISTERS = ("register_run_id", "register_task_id", "register_metadata", "start_task_heartbeat", "stop_heartbeat")


class GangError(MetaflowException):
    """Shown by Metaflow as a headline and a text, without a trace."""

    headline = "Gang failed"


def code_content() -> Any:
    """What marks a file of a code package as code, which goes where modules are found."""
    from metaflow.packaging_sys import ContentType  # noqa: PLC0415 - where packages are made alone

    return ContentType.CODE_CONTENT


def named_decorator(step: Any, name: str) -> Any | None:
    """A decorator of a step, by its name."""
    return next((one for one in getattr(step, "decorators", ()) if one.name == name), None)


def attributes_of(step: Any, name: str) -> Mapping[str, Any]:
    """The attributes of a decorator of a step; {} where the step has none of that name."""
    found = named_decorator(step, name)
    return {} if found is None else found.attributes


def foreach_depth(flow: Any, step: str) -> int | None:
    """How many foreaches a step lies in; None: it may be run again and again, as a switch can have it."""
    graph = flow._graph  # noqa: SLF001 - the only place that it has
    ahead: list[str] = list(graph[step].out_funcs)
    seen: set[str] = set()
    while ahead:
        name = ahead.pop()
        if name == step:
            return None
        if name not in seen:
            seen.add(name)
            ahead += graph[name].out_funcs
    parents = graph[step].split_parents
    if graph[step].type == "join":
        parents = parents[:-1]  # the split that it closes is still listed
    return [graph[parent].type for parent in parents].count("foreach")


def step_params() -> list[Any]:
    """The parameters of Metaflow's own `step` command, of whatever version, and those that only some have."""
    from metaflow.cli_components.step_cmd import step  # noqa: PLC0415 - needed in the trampoline alone

    return list(step.params)


def mute_decorator(decorator: Any) -> None:
    """Have a decorator do nothing in this process while a task runs."""
    for hook in ("task_pre_step", "task_post_step", "task_exception", "task_finished"):
        setattr(decorator, hook, _nothing)
    decorator.task_decorate = lambda step_func, *_args, **_kwargs: step_func
    for hook in ("task_pre_step_ctx", "task_decorate_ctx", "task_step_completed_ctx", "task_finished_ctx"):
        if hasattr(decorator, hook):
            setattr(decorator, hook, None)


def mute_end(decorator: Any) -> None:
    """Have a decorator say nothing of the end of a task."""
    decorator.task_finished = _nothing


def mute_task(flow_datastore: Any) -> None:
    """Have the task that this process runs leave no trace: nothing is stored, nothing registered."""
    get = flow_datastore.get_task_datastore

    def get_muted(*args: Any, **kwargs: Any) -> Any:
        found = get(*args, **kwargs)
        if kwargs.get("mode") == "w":
            for name in _WRITES:
                setattr(found, name, _nothing)
        return found

    flow_datastore.get_task_datastore = get_muted
    for name in _REGISTERS:
        setattr(flow_datastore.metadata, name, _nothing)


def explain_caught(decorator: Any, explain: Callable[[], Exception | None]) -> None:
    """Have @catch keep a better exception than the one which says only that every attempt has failed."""
    catch = decorator.task_exception

    def task_exception(exception: BaseException, *args: Any, **kwargs: Any) -> Any:
        if type(exception).__name__ == "FailureHandledByCatch" and (better := explain()) is not None:
            try:
                raise better from None  # @catch keeps the trace of the exception that is being handled
            except type(better) as raised:
                return catch(raised, *args, **kwargs)
        return catch(exception, *args, **kwargs)

    decorator.task_exception = task_exception


def register(metadata: Any, *, run: str, step: str, task: str, attempt: int, fields: Mapping[str, str]) -> None:
    """Note something with a task, for people and programs that look at it."""
    from metaflow.metadata_provider import MetaDatum  # noqa: PLC0415 - costs time where it is not needed

    tags = [f"attempt_id:{attempt}"]
    data = [MetaDatum(field=name, value=value, type=name, tags=tags) for name, value in fields.items() if value]
    metadata.register_metadata(run, step, task, data)


def begin_hooks(obj: Any, task: Any, decorators: Iterable[Any], params: Mapping[str, Any]) -> None:
    """What Metaflow does before a task's body, for some decorators of its step alone."""
    current._set_env(  # noqa: SLF001 - as `MetaflowTask.run_step` does
        flow=obj.flow,
        run_id=task.run,
        step_name=task.step,
        task_id=task.task,
        retry_count=task.retry,
        origin_run_id=params.get("clone_run_id"),
        namespace=resolve_identity(),
        username=get_username(),
        metadata_str=obj.metadata.metadata_str(),
        is_running=True,
        tags=obj.metadata.sticky_tags,
    )
    store = obj.flow_datastore.get_task_datastore(task.run, task.step, task.task, attempt=task.retry, mode="w")
    most = int(params.get("max_user_code_retries") or 0)
    flow, metadata, graph = obj.flow, obj.metadata, obj.graph
    for one in decorators:
        one.task_pre_step(task.step, store, metadata, task.run, task.task, flow, graph, task.retry, most, None, [])


def end_hooks(obj: Any, task: Any, decorators: Iterable[Any], params: Mapping[str, Any], *, is_ok: bool) -> None:
    """What Metaflow does after a task, for some decorators of its step alone."""
    most = int(params.get("max_user_code_retries") or 0)
    if is_ok:
        stored = obj.flow_datastore.get_task_datastore(task.run, task.step, task.task)
        for name in _NEXT:
            if name in stored:
                setattr(obj.flow, name, stored[name])
    for one in decorators:
        one.task_finished(task.step, obj.flow, obj.graph, is_ok, task.retry, most)


def decorate_line(line: str) -> bytes:
    """A line of a task's log as Metaflow's runtime takes it, without keeping it: `log_store` does that."""
    return bytes(decorate(TASK_LOG_SOURCE, line))


def log_store(flow_datastore: Any, *, run: str, step: str, task: str, attempt: int) -> Callable[[Any, Any], None]:
    """What stores the whole standard output and the whole standard error of a task, each a path or bytes.

    The datastore is opened by the first call, which raises what a store raises, as every later one does.
    """
    opened: list[Any] = []

    def save(stdout: Any, stderr: Any) -> None:
        if not opened:
            opened.append(flow_datastore.get_task_datastore(run, step, task, attempt=attempt, mode="w"))
        opened[0].save_logs(TASK_LOG_SOURCE, {"stdout": stdout, "stderr": stderr})

    return save


def local_sysroot() -> str:
    """The folder in which Metaflow keeps what is local, absolute: ranks start elsewhere, and would take another one."""
    from metaflow.plugins.datastores.local_storage import LocalStorage  # noqa: PLC0415 - the trampoline needs it

    root = LocalStorage.get_datastore_root_from_config(lambda *_args, **_kwargs: None)
    return str(Path(root).absolute().parent)


def username() -> str:
    """Who runs the flow, as Metaflow has it."""
    return str(get_username() or "")


def others(decorators: Iterable[Any], names: frozenset[str]) -> list[Any]:
    """The decorators that have one of these names."""
    return [one for one in decorators if one.name in names]


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None
