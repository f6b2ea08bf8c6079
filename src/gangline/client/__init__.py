"""The Python client: the same verbs as the command line. Names are loaded when they are first used.

from gangline.client import connect, spec, submit
run = submit(spec(script="train.py", resources={"nodes": 2}))
connect().wait(run["id"], timeout_s=60)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.client.client import Client
    from gangline.client.connection import connect
    from gangline.client.lease import keep_lease
    from gangline.client.submission import check, spec, submit
    from gangline.domain.errors import GanglineError
    from gangline.domain.spec import (
        CheckpointPolicy,
        EntryKind,
        Environment,
        LogPolicy,
        OnTimeLimit,
        Resources,
        RestartPolicy,
        ResumeMode,
        RunSpec,
        StartMode,
        StopPolicy,
        Strategy,
    )
    from gangline.wire.views import RunDetail, RunSummary

__all__ = [
    "CheckpointPolicy",
    "Client",
    "EntryKind",
    "Environment",
    "GanglineError",
    "LogPolicy",
    "OnTimeLimit",
    "Resources",
    "RestartPolicy",
    "ResumeMode",
    "RunDetail",
    "RunSpec",
    "RunSummary",
    "StartMode",
    "StopPolicy",
    "Strategy",
    "check",
    "connect",
    "keep_lease",
    "spec",
    "submit",
]

_HOMES = {
    "Client": "gangline.client.client",
    "GanglineError": "gangline.domain.errors",
    "RunDetail": "gangline.wire.views",
    "RunSummary": "gangline.wire.views",
    "check": "gangline.client.submission",
    "connect": "gangline.client.connection",
    "keep_lease": "gangline.client.lease",
    "spec": "gangline.client.submission",
    "submit": "gangline.client.submission",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "gangline.domain.spec")), name)
