"""What Metaflow does not promise to keep (Netflix/metaflow#1146), in one place but for two attributes.

Run with 2.18.13, 2.19.23 and 2.19.39. Imports Metaflow alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from metaflow import current
from metaflow._vendor import click
from metaflow.exception import MetaflowException
from metaflow.mflog import TASK_LOG_SOURCE
from metaflow.mflog.mflog import decorate
from metaflow.util import decompress_list, get_username, resolve_identity

from .parts import Frame

__all__ = [
    "GangError",
    "attributes_of",
    "begin_hooks",
    "click",
    "clone_task",
    "code_content",
    "decorate_line",
    "digest_inputs",
    "end_hooks",
    "explain_caught",
    "fetch_metadata",
    "frames_of",
    "input_paths",
    "is_folder_named",
    "is_one_of_many",
    "local_sysroot",
    "log_store",
    "mute_decorator",
    "mute_end",
    "mute_task",
    "named_decorator",
    "origins_of",
    "others",
    "register",
    "rounds_of",
    "send_metadata",
    "step_params",
    "username",
]

_WRITES = ("_save_file", "persist", "save_artifacts", "done")
"""What a task's datastore writes with."""
_NEXT = ("_transition", "_foreach_num_splits", "_parallel_ubf_iter")
"""Results of a step that say what comes next."""
_REGISTERS = ("register_run_id", "register_task_id", "register_metadata", "start_task_heartbeat", "stop_heartbeat")


_MOST_ORIGINS = 50
_MOST_INPUTS = 50


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


def is_one_of_many(graph: Any, step: str) -> bool:
    """Whether a step may have several tasks in one run of a flow: in a foreach, or repeated by a switch."""
    node = graph[step]
    parents = node.split_parents[:-1] if node.type == "join" else node.split_parents  # a join closes its own
    return step in node.out_funcs or any(graph[parent].type == "foreach" for parent in parents)


def frames_of(obj: Any, step: str, *, input_path: str, split: int | None) -> list[Frame]:
    """The foreaches around a task, from the outside in, as Metaflow finds them when the task begins.

    Args:
        input_path: of a task before it.
        split: which part it is of a foreach that begins with it.
    """
    node, found = obj.graph[step], _stored_task(obj, input_path)
    stack = list(found.get("_foreach_stack") or ())
    if node.type == "join" and obj.graph[node.split_parents[-1]].type == "foreach":
        stack.pop()
    told = [(one.var, one.index, one.value) for one in stack]
    var, values = found.get("_foreach_var"), found.get("_foreach_values")
    if node.type != "join" and var is not None and split is not None:
        told.append((var, split, None if values is None else values[split]))
    return [
        Frame(
            index=index,
            items=found.get(var),
            stored=found.keys_for_artifacts([var])[0],
            shown=shown,
            show=obj.flow._get_foreach_item_value,  # noqa: SLF001 - the text must be the same
        )
        for var, index, shown in told
    ]


def rounds_of(obj: Any, step: str, *, input_path: str) -> list[int]:
    """How often a step that a switch repeats has been run before; [] for any other."""
    if step not in obj.graph[step].out_funcs:
        return []
    before = _stored_task(obj, input_path).get("_iteration_stack")
    return [before[-1] + 1 if before else 0]


def input_paths(params: Mapping[str, Any]) -> list[str]:
    """The tasks before this one."""
    text = params.get("input_paths") or ""
    if not text and params.get("input_paths_filename"):
        text = Path(params["input_paths_filename"]).read_text(encoding="utf-8").strip(" \n\"'")
    return [str(path) for path in decompress_list(text)] if text else []


def digest_inputs(obj: Any, params: Mapping[str, Any]) -> str | None:
    """What a task is given, by its content: all artifacts of the tasks before it, and its place in a foreach.

    None where those are too many to ask a store about.
    """
    paths = input_paths(params)
    if len(paths) > _MOST_INPUTS:
        return None
    given = [_stored_task(obj, path).ds_metadata["objects"] for path in paths]
    root = str(obj.flow_datastore.datastore_root)
    return hashlib.sha256(json.dumps([root, given, params.get("split_index")], sort_keys=True).encode()).hexdigest()


def origins_of(obj: Any, run: str) -> list[str]:
    """A run of a flow, the one that it resumes, the one that that one resumes, and so on."""
    from metaflow.client import Step  # noqa: PLC0415 - after a resume alone

    found = [run]
    start = getattr(obj.graph, "start_step", "start")
    while len(found) < _MOST_ORIGINS:
        told = Step(f"{obj.flow.name}/{found[-1]}/{start}", _namespace_check=False).task.metadata_dict
        origin = told.get("origin-run-id")
        if origin in (None, "None", *found):
            break
        found.append(str(origin))
    return found


def clone_task(obj: Any, task: Any, origin: str) -> None:
    """Have a task be what another one, given by its pathspec, has been: its artifacts are that one's.

    Raises:
        MetaflowException: that one has stored no results.
    """
    from metaflow.clone_util import clone_task_helper  # noqa: PLC0415 - after a resume alone

    flow, run, step, number = origin.split("/")
    clone_task_helper(
        flow, run, task.run, step, number, task.task, obj.flow_datastore, obj.metadata, attempt_id=task.retry
    )


def _stored_task(obj: Any, path: str) -> Any:
    run, step, task, *_ = path.split("/")
    return obj.flow_datastore.get_task_datastore(run, step, task)


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


def is_folder_named() -> bool:
    """Whether a person has said where Metaflow keeps what is local: else it is a folder beside the flow."""
    from metaflow.metaflow_config import DATASTORE_SYSROOT_LOCAL  # noqa: PLC0415 - as they all do

    return bool(DATASTORE_SYSROOT_LOCAL)


def send_metadata(task_store: Any, pathspec: str) -> None:
    """Put the local metadata of a task, which lies below the working folder, beside its artifacts."""
    from metaflow.metadata_provider.util import sync_local_metadata_to_datastore  # noqa: PLC0415 - in rank 0 alone
    from metaflow.metaflow_config import DATASTORE_LOCAL_DIR  # noqa: PLC0415 - as above

    sync_local_metadata_to_datastore(f"{DATASTORE_LOCAL_DIR}/{pathspec}", task_store)


def fetch_metadata(task_store: Any) -> None:
    """Add what `send_metadata` has put there to the local metadata here."""
    from metaflow.metadata_provider.util import sync_local_metadata_from_datastore  # noqa: PLC0415 - as above
    from metaflow.metaflow_config import DATASTORE_LOCAL_DIR  # noqa: PLC0415 - as above

    sync_local_metadata_from_datastore(DATASTORE_LOCAL_DIR, task_store)


def username() -> str:
    """Who runs the flow, as Metaflow has it."""
    return str(get_username() or "")


def others(decorators: Iterable[Any], names: frozenset[str]) -> list[Any]:
    """The decorators that have one of these names."""
    return [one for one in decorators if one.name in names]


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None
