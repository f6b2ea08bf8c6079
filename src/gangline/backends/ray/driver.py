"""The entry point of a gang's job: it holds a placement group, and one agent in each of its bundles.

It runs on the cluster's own interpreter and Ray, as a single file, and imports the standard library and Ray alone. An
agent is a process below a Ray worker, never inside it: what the training code imports is its own affair. When this
process is told to end, it ends the agents first; when it is killed, Ray ends the workers, and the kernel the guardians.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

_CHECK_FAILED = 66
_MISMATCH = 67
_SIGTERM_CODE = 143
_PAUSE_S = 0.1
_LOOK_S = 0.5
_ROOM_S = 1
"""Ray takes whole seconds here: half of one would be none."""
_END_S = 30.0
_MOST_SHOWN = 8
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "PATH", "TZ", "LD_LIBRARY_PATH")
"""What an agent keeps of a Ray worker's environment; what Ray and some shell have set is not for training code."""
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)
"""Starts what is killed when the worker that starts it is gone (PR_SET_PDEATHSIG, SIGKILL)."""


class CheckFailed(Exception):
    """A node of the cluster cannot hold an agent; what it says is for people."""


def check_node(plan: Mapping[str, Any], host: str) -> str:
    """See that a node sees the launch as the server does; "" or what is wrong."""
    launch = Path(plan["launch_dir"])
    try:
        json.loads((launch / "launch.json").read_text(encoding="utf-8"))
        probe = launch / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as error:
        user = os.environ.get("USER") or os.getuid()
        return f"Ray node {host} cannot use the run's folder {launch} as {user}: {error}."
    return ""


def run_agent(plan: Mapping[str, Any], node: int, address: str) -> int:
    """Run the agent of a node until its end; its exit code.

    A KeyboardInterrupt (`ray.cancel`) ends it, with all that it has started.
    """
    log = os.open(f"{plan['launch_dir']}/node-{node:03d}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    command = [sys.executable, *plan["agents"][node]]
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command],
        env=render_env(os.environ, plan, address),
        cwd=plan["run_dir"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    os.close(log)
    try:
        while guardian.poll() is None:
            time.sleep(_PAUSE_S)
    except BaseException:
        end_agent(guardian)
        raise
    return guardian.returncode


def render_env(env: Mapping[str, str], plan: Mapping[str, Any], address: str) -> dict[str, str]:
    """The environment of an agent."""
    kept = {key: value for key, value in env.items() if key in _KEPT or key.startswith("LC_")}
    devices = {key: value for key, value in env.items() if key.endswith("_VISIBLE_DEVICES") and plan["has_devices"]}
    return {**kept, **devices, **plan["env"], "GANGLINE_ADDRESS": address}


def end_agent(guardian: subprocess.Popen[bytes]) -> None:
    """Kill an agent: its guardian ends all below it, and itself."""
    try:
        found = Path(f"/proc/{guardian.pid}/task/{guardian.pid}/children").read_text(encoding="ascii").split()
    except OSError:
        found = []
    for pid in [int(word) for word in found] or [guardian.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        guardian.wait(_END_S)
    except subprocess.TimeoutExpired:
        guardian.kill()


def main(argv: Sequence[str]) -> int:
    """Run the gang that a plan describes; 0 when every agent has come to its end, whatever became of the ranks."""
    plan = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    try:
        ray = import_module("ray")
    except ImportError as error:
        return _say(_MISMATCH, f"{sys.executable} on the head of the cluster has no ray: {error}.")
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR", namespace=plan["name"])
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        return _say(_MISMATCH, " ".join(str(error).split()))
    signal.signal(signal.SIGTERM, _leave)  # Ray has set its own
    return _Gang(plan, ray).run()


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(_SIGTERM_CODE)


def _say(code: int, text: str) -> int:
    """The last line that a job has printed is part of its message."""
    print(f"gangline: {text}", file=sys.stderr, flush=True)  # noqa: T201 - of the job's log
    return code


class _Gang:
    """A placement group with its agents."""

    def __init__(self, plan: Mapping[str, Any], ray: Any) -> None:  # noqa: ANN401 - a module
        self._plan = plan
        self._ray = ray
        self._tasks: dict[Any, int] = {}
        self._lost: list[int] = []
        self._hosts: list[str] = []

    def run(self) -> int:
        plan, groups = self._plan, import_module("ray.util.placement_group")
        group = groups.placement_group(plan["bundles"], strategy=plan["strategy"], name=plan["name"])
        try:
            while not group.wait(_ROOM_S):
                self._note("waiting", why=explain_wait(plan, self._free()))
            self._check(group)
            return self._hold(group)
        except CheckFailed as error:
            return _say(_CHECK_FAILED, str(error))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end_all()
            groups.remove_placement_group(group)

    def _check(self, group: Any) -> None:  # noqa: ANN401
        """Ask every node before anything starts."""
        context = self._ray.remote(max_retries=0)(_locate)
        asked = [context.options(**self._options(group, node)).remote(self._plan) for node in self._nodes()]
        answers = self._ray.get(asked)
        self._hosts = [address for address, _ in answers]
        wrong = next((why for _, why in answers if why), "")
        if wrong:
            raise CheckFailed(wrong)

    def _hold(self, group: Any) -> int:  # noqa: ANN401
        """Start the agents, and wait until the last one has ended."""
        remote = self._ray.remote(max_retries=0)(run_agent)
        for node in self._nodes():
            options = self._options(group, node)
            self._tasks[remote.options(**options).remote(self._plan, node, self._hosts[node])] = node
        self._note("started")
        code = 0
        while self._tasks:
            done, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=_LOOK_S)
            for task in done:
                code = max(code, self._take(task))
        return 0 if not self._lost else _say(1, f"The agents of nodes {self._lost} were lost.")

    def _take(self, task: Any) -> int:  # noqa: ANN401
        """The exit code of an agent that is gone."""
        node = self._tasks.pop(task)
        try:
            return int(self._ray.get(task))
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the agent is gone; it is noted
            _say(1, f"node {node}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
            self._lost.append(node)
        finally:
            if self._tasks:
                self._note("started", gone=[node for node in self._nodes() if node not in self._tasks.values()])
        return 1

    def _end_all(self) -> None:
        """Interrupt every agent that is left, and wait for its end."""
        for task in self._tasks:
            self._ray.cancel(task, force=False)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=_END_S)

    def _options(self, group: Any, node: int) -> dict[str, Any]:  # noqa: ANN401
        bundle = self._plan["bundles"][node]
        strategies = import_module("ray.util.scheduling_strategies")
        strategy = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        return {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": strategy,
            "max_retries": 0,
            "name": f"{self._plan['name']}-{node}",
        }

    def _nodes(self) -> range:
        return range(len(self._plan["bundles"]))

    def _free(self) -> list[dict[str, Any]]:
        """What each living node has, and what of it is free, where this Ray says."""
        try:
            free = import_module("ray._private.state").available_resources_per_node()
        except Exception:  # noqa: BLE001 - no public call tells; the totals do
            free = {}
        living = [node for node in self._ray.nodes() if node["Alive"]]
        return [
            {"host": node["NodeName"], "total": node["Resources"], "free": free.get(node["NodeID"], node["Resources"])}
            for node in living
        ]

    def _note(self, state: str, **more: object) -> None:
        """Tell the server how the gang stands, by rename."""
        path = Path(self._plan["launch_dir"], "ray-state.json")
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps({"version": 1, "state": state, "hosts": self._hosts, **more}), encoding="utf-8")
        beside.replace(path)


def _locate(plan: Mapping[str, Any]) -> tuple[str, str]:
    """Address of the Ray node on which this runs, and what is wrong with it."""
    address = import_module("ray").util.get_node_ip_address()
    return address, check_node(plan, address)


def explain_wait(plan: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why the placement group does not come about, in a sentence. Pure.

    Args:
        nodes: `host`, `total` and `free` resources by name, of each node that lives.
    """
    bundle = plan["bundles"][0]
    wanted = len(plan["bundles"])
    asked = ", ".join(f"{_amount(count)} {name}" for name, count in bundle.items())
    able = [node for node in nodes if _holds(node["total"], bundle)]
    ready = [node for node in able if _holds(node["free"], bundle)]
    if plan["strategy"] == "PACK":
        return f"Waits for room for {wanted} nodes with {asked} each; {_shown(nodes, bundle)}."
    text = f"Waits for {wanted} Ray nodes with {asked} free on each"
    if len(able) < wanted:
        return f"{text}: only {len(able)} of the cluster's {len(nodes)} have as much at all ({_shown(nodes, bundle)})."
    return f"{text}: {len(ready)} of {len(nodes)} have that free now ({_shown(nodes, bundle)})."


def _shown(nodes: Sequence[Mapping[str, Any]], bundle: Mapping[str, float]) -> str:
    """What is free on the nodes, of all that they have."""
    lines = []
    for node in nodes[:_MOST_SHOWN]:
        free, total = node["free"], node["total"]
        parts = [f"{_amount(free.get(name, 0))} of {_amount(total.get(name, 0))} {name}" for name in bundle]
        lines.append(f"{node['host']}: {', '.join(parts)}")
    return "; ".join(lines + (["…"] if len(nodes) > _MOST_SHOWN else []))


def _holds(has: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(has.get(name, 0) >= count for name, count in bundle.items())


def _amount(count: float) -> str:
    return f"{count:g}" if count < 1 << 20 else f"{count / (1 << 30):.1f} GiB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
