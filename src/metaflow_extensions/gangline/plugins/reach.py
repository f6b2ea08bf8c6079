"""What machines of a pool reach of what Metaflow keeps: its datastore, and the metadata that lies in a folder."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from .compat import GangError, fetch_metadata, is_folder_named, send_metadata
from .task import LOCAL, GangTask

__all__ = ["bring_metadata_home", "check_folder", "hand_metadata_over", "is_far", "refuse_own_folder"]

_FOLDER = "METAFLOW_DATASTORE_SYSROOT_LOCAL"


def is_far(task: GangTask, store: Any) -> bool:
    """Whether ranks run on other machines, and share nothing with this one but the datastore."""
    return LOCAL not in {task.pool, store.TYPE}


def refuse_own_folder(step: str, pool: str, store: Any) -> None:
    """Refuse a datastore that is a folder beside the flow, where ranks run on machines of a pool.

    Raises:
        GangError: it is one.
    """
    if pool != LOCAL and store.TYPE == LOCAL and not is_folder_named():
        raise GangError(
            f"Step *{step}* has @gang(pool={pool!r}), and the flow keeps its artifacts in {store.datastore_root}: a "
            f"folder of this machine, which the machines of `{pool}` do not see. Use `--datastore s3`; or, where both "
            f"see a folder under the same path, name it by {_FOLDER}."
        )


def check_folder(task: GangTask, store: Any) -> None:
    """In a rank: see that the folder in which the flow keeps its artifacts is there.

    Raises:
        GangError: it is not.
    """
    if store.TYPE == LOCAL and not Path(store.datastore_root, task.flow, task.run).is_dir():
        raise GangError(
            f"The artifacts of run {task.run} are not in {store.datastore_root} on {socket.gethostname()}, which does "
            f"not share that folder with the machine of the flow. Use `--datastore s3`, or a folder that both see "
            f"under the same path, by {_FOLDER}."
        )


def hand_metadata_over(task: GangTask, metadata: Any, task_store: Any) -> None:
    """In rank 0: put what Metaflow noted of the task in a folder here where the machine of the flow finds it."""
    if metadata.TYPE == LOCAL and is_far(task, task_store.parent_datastore):
        _try(lambda: send_metadata(task_store, task.pathspec), "be handed over")


def bring_metadata_home(task: GangTask, metadata: Any, flow_store: Any) -> None:
    """In the trampoline, after the gang: put it where Metaflow's client looks."""
    if metadata.TYPE == LOCAL and is_far(task, flow_store):
        _try(lambda: fetch_metadata(flow_store.get_task_datastore(task.run, task.step, task.task)), "be fetched")


def _try(call: Any, what: str) -> None:
    """It never decides how a task ends."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever a store raises
        sys.stderr.write(f"What Metaflow noted of this task on its machine could not {what} ({error}).\n")
