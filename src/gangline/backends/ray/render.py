"""What Ray is given for a gang: the plan of its driver, and the request that submits it. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gangline.domain.gang import GangSpec, Launch
from gangline.domain.pool import RayPool, Spread

__all__ = ["PLAN", "REQUEST", "Ours", "driver_name", "driver_text", "parse_id", "render_launch", "submission_id"]

PLAN, REQUEST = "ray-plan.json", "ray-job.json"
_ID = re.compile(r"gangline-([0-9a-f]{12})-([a-z0-9-]+)-(\d+)")
_NOT_SEEN = 66


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Whose launch a job is."""

    home: str
    run_id: str
    launch: int


def submission_id(home: str, run_id: str, launch: int) -> str:
    """What Ray knows a launch by: it takes each of these once."""
    return f"gangline-{home}-{run_id}-{launch}"


def parse_id(text: str) -> Ours | None:
    """Whose a job is; None: it is none of Gangline's."""
    found = _ID.fullmatch(text)
    return None if found is None else Ours(home=found[1], run_id=found[2], launch=int(found[3]))


@cache
def driver_text() -> str:
    """The program that is the entry point of every job."""
    return files("gangline.backends.ray").joinpath("driver.py").read_text(encoding="utf-8")


def driver_name() -> str:
    """Name of its file, with the digest of its content."""
    return f"ray-driver-{hashlib.sha256(driver_text().encode()).hexdigest()[:16]}.py"


def render_launch(gang: GangSpec, pool: RayPool, *, home: str, agent: str, driver: str) -> Launch:
    """The job of a gang.

    Args:
        home: identity of the state folder.
        agent, driver: paths of both programs, as the cluster sees them.
    """
    folder = f"launches/{gang.launch:03d}"
    agents = [_agent(gang, node, agent) for node in range(gang.nodes)]
    plan = {
        "version": 1,
        "name": f"gangline-{gang.run_id}-{gang.launch}",
        "run_dir": gang.run_dir,
        "launch_dir": f"{gang.run_dir}/{folder}",
        "strategy": "PACK" if pool.spread is Spread.PACK else "STRICT_SPREAD",
        "bundles": [_bundle(gang)] * gang.nodes,
        "agents": agents,
        "has_devices": gang.gpus_per_node > 0,
        "env": dict(pool.env),
    }
    request = {
        "submission_id": submission_id(home, gang.run_id, gang.launch),
        "entrypoint": _entry_point(pool.python, driver, f"{gang.run_dir}/{folder}/{PLAN}"),
        "metadata": {"gangline_run": gang.run_id, "gangline_launch": str(gang.launch), "job_name": gang.name},
    }
    texts = {f"{folder}/{PLAN}": _text(plan), f"{folder}/{REQUEST}": _text(request)}
    return Launch(backend="ray", commands=tuple(("python", *one) for one in agents), files=texts, gang=gang)


def _agent(gang: GangSpec, node: int, agent: str) -> list[str]:
    return ["-I", "-S", agent, "agent", gang.run_dir, "--launch", str(gang.launch), "--node", str(node)]


def _bundle(gang: GangSpec) -> dict[str, float]:
    bundle: dict[str, float] = {"CPU": gang.cpus_per_node or gang.procs_per_node}
    if gang.gpus_per_node:
        bundle["GPU"] = gang.gpus_per_node
    if gang.memory_bytes:
        bundle["memory"] = gang.memory_bytes
    return bundle


def _entry_point(python: str, driver: str, plan: str) -> str:
    """A line of shell; where the head does not see the folder, it says so, and not the interpreter."""
    told = f"gangline: the head of the Ray cluster does not see {plan}, or may not read it."
    words: Sequence[str] = (python, "-I", driver, plan)
    look = f"test -r {shlex.quote(plan)} || {{ echo {shlex.quote(told)} >&2; exit {_NOT_SEEN}; }}"
    return f"{look}; exec {shlex.join(words)}"


def _text(raw: dict[str, Any]) -> str:
    return json.dumps(raw, indent=1) + "\n"
