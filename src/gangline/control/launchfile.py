"""`launch.json`: what the agents of one launch are told. Pure; docs/contributing/architecture.md describes the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from gangline.domain.phase import Budget
from gangline.domain.spec import RunSpec

__all__ = ["REDACTED", "LaunchTerms", "render_launch", "render_launch_text"]

LAUNCH_VERSION = 1
REDACTED = "(made at launch)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTerms:
    """What is decided anew for each launch of a run."""

    run_id: str
    launch: int = 0
    first_attempt: int = 0
    """Number of the first attempt that the leader begins."""
    nodes: int = 0
    """Agents of this launch; 0: as many as the spec says."""
    devices: Sequence[Sequence[str]] = ()
    """Per node: the accelerators that it may use; empty where agents take those that they find themselves given."""
    device_kind: str = ""
    token: str = field(default=REDACTED, repr=False)
    """What the agents of the gang know each other by."""
    restarts_used: Mapping[Budget, int] = field(default_factory=dict)
    control_offset: int = 0
    """Size of `control.jsonl`: requests before it were for earlier launches."""
    branch_attempt: int = 0
    """First attempt that began at the checkpoint that the spec names."""
    delay_s: float = 0.0
    lease_s: float | None = None
    """How long the launch goes on when nobody renews; None: it needs nobody."""
    default_checkpoints: str = ""
    """Folder for checkpoints where the spec names none."""
    answers: str = ""
    """Folder in which agents keep what interpreters have answered."""
    objects: str | None = None
    """Folder of the contents of snapshots; None where agents do not share files with the server."""


def render_launch(spec: RunSpec, terms: LaunchTerms) -> dict[str, Any]:
    """The content of `launch.json`.

    Args:
        spec: completed by `domain.check.complete_spec`, its interpreter resolved.
    """
    resources, environment = spec.resources, spec.environment
    checkpoint = {**_plain(spec.checkpoint), "path": spec.checkpoint.path or terms.default_checkpoints}
    return {
        "version": LAUNCH_VERSION,
        "run_id": terms.run_id,
        "run_name": spec.name,
        "project": spec.project,
        "launch": terms.launch,
        "first_attempt": terms.first_attempt,
        "nodes": terms.nodes or len(terms.devices) or resources.nodes,
        "min_nodes": resources.min_nodes,
        "procs_per_node": resources.procs_per_node,
        "devices": [list(node) for node in terms.devices],
        "device_kind": terms.device_kind,
        "gpus_per_node": resources.gpus_per_node or 0,
        "cpus_per_rank": resources.cpus_per_rank,
        "memory_bytes": resources.memory_bytes,
        "token": terms.token,
        "entry_kind": spec.entry_kind.value,
        "entry": spec.entry,
        "args": list(spec.args),
        "workdir": "." if spec.snapshot is None else spec.snapshot.workdir,
        "python": environment.python,
        "env": {**spec.inherited_env, **environment.env},
        "unbuffered": environment.unbuffered,
        "start": environment.start.value,
        "preload": list(environment.preload),
        "strategy": spec.strategy.value,
        "checkpoint": checkpoint,
        "restarts": _plain(spec.restarts),
        "restarts_used": {budget.value: terms.restarts_used.get(budget, 0) for budget in Budget},
        "stop": _plain(spec.stop),
        "preflight": _plain(spec.preflight),
        "watch": _plain(spec.watch),
        "logs": _plain(spec.logs),
        "outputs": list(spec.outputs),
        "signatures": dict(spec.signatures),
        "snapshot_digest": None if spec.snapshot is None else spec.snapshot.digest,
        "objects": None if spec.snapshot is None else terms.objects,
        "control_offset": terms.control_offset,
        "branch_attempt": terms.branch_attempt,
        "pdb_rank": spec.pdb_rank,
        "batch": None if spec.slurm.script is None else _batch(spec),
        "delay_s": terms.delay_s,
        "lease_s": terms.lease_s,
        "answers": terms.answers,
    }


def render_launch_text(spec: RunSpec, terms: LaunchTerms) -> str:
    """The file itself: ASCII, so that values with bytes that are no UTF-8 survive it."""
    return json.dumps(render_launch(spec, terms), indent=1) + "\n"


def _batch(spec: RunSpec) -> dict[str, str]:
    """The batch script that is run as it is, and what of its own options concerns how."""
    named = spec.slurm.directives
    told = {"job-name": "name", "chdir": "chdir", "output": "output", "error": "error"}
    return {"script": spec.slurm.script or "", **{told[name]: named[name] for name in told if name in named}}


def _plain(part: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass of the spec
    return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(part).items()}
