"""What a gang does, in one digest: two runs with the same would store the same results. Pure.

Code, inputs, arguments, machines, environment: all of a spec but what says merely which task of which flow it is for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from gangline.client import RunSpec

from .task import BEGAN, VARIABLE

__all__ = ["name_work"]

_OF_A_TASK = frozenset(
    {
        "--clone-run-id",
        "--input-paths",
        "--input-paths-filename",
        "--local-config-file",
        "--max-user-code-retries",
        "--retry-count",
        "--run-id",
        "--tag",
        "--task-id",
    }
)
"""Options of `step` that are others in each run of a flow; what its inputs are is told by their content."""
_OF_A_RUN = frozenset({BEGAN, VARIABLE, "METAFLOW_RUN_ID"})
_OF_A_SESSION = ("XDG_SESSION_", "XDG_SEAT", "XDG_VTNR")


def name_work(spec: RunSpec, inputs: str | None) -> str:
    """The digest of what a run does.

    Args:
        spec: with its snapshot.
        inputs: digest of what goes into the task; None: nobody knows.
    Returns:
        "" where nobody can know.
    """
    if inputs is None or spec.snapshot is None:
        return ""
    bare = replace(spec, args=tuple(_without_task(spec.args)), labels={})
    told = asdict(replace(bare, environment=replace(spec.environment, env={}), inherited_env={}))
    told["env"] = _lasting(spec.environment.env.items())
    told["inherited"] = _lasting(spec.inherited_env.items())
    text = json.dumps([inputs, told], sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _lasting(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in variables if name not in _OF_A_RUN and not name.startswith(_OF_A_SESSION)}


def _without_task(arguments: Sequence[str]) -> Iterable[str]:
    rest = iter(arguments)
    for word in rest:
        if word in _OF_A_TASK:
            next(rest, None)
        elif word.partition("=")[0] not in _OF_A_TASK:
            yield word
