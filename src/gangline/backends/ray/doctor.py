"""What `gangline pools doctor` finds out about a Ray pool."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from gangline.backends.ray.api import Job, JobsApi
from gangline.domain.errors import BackendError
from gangline.domain.pool import Finding, RayPool, Spread, Verdict
from gangline.rundir.home import Home

__all__ = ["examine"]

_DEEP_S = 90.0
_PAUSE_S = 0.5
_DEEP = (
    "import json, sys, ray; ray.init(address='auto', log_to_driver=False, logging_level='ERROR'); "
    "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On; "
    "see = ray.remote(num_cpus=0, max_retries=0)(lambda path: __import__('os').access(path, 6)); "
    "nodes = [node for node in ray.nodes() if node['Alive']]; "
    "asked = [see.options(scheduling_strategy=On(node['NodeID'], soft=False)).remote(sys.argv[1]) for node in nodes]; "
    "seen = ray.get(asked); "
    "print('gangline-doctor ' + json.dumps([[node['NodeName'], bool(one)] for node, one in zip(nodes, seen)]))"
)


def examine(
    pool: RayPool, api: JobsApi, home: Home, *, deep: bool, sleep: Callable[[float], None] = time.sleep
) -> list[Finding]:
    """All that is found; where the Jobs API does not answer, that alone.

    Args:
        deep: also have every Ray node look at the state folder.
    """
    try:
        version = api.version()
        api.jobs()
    except BackendError as error:
        fix = error.fix or "`address:` is that of the dashboard (port 8265), which needs ray[default] on the head."
        return [Finding(check="Jobs API", verdict=Verdict.FAILED, text=f"{error.what}: {error.why}.", fix=fix)]
    found = [
        Finding(check="Jobs API", verdict=Verdict.OK, text=f"{pool.address}: Ray {version.ray}, {version.session}."),
        _nodes(pool, api),
    ]
    return [*found, *(_folder(pool, api, home, sleep) if deep else [_unseen(pool, home)])]


def _nodes(pool: RayPool, api: JobsApi) -> Finding:
    try:
        nodes = api.nodes()
    except BackendError as error:
        fix = "Set `max_nodes:`; gangs are then not checked against what there is."
        return Finding(check="nodes", verdict=Verdict.WARNING, text=f"They cannot be listed: {error.why}.", fix=fix)
    kinds: dict[str, int] = {}
    for node in nodes:
        kind = f"{node.cpus:g} CPUs, {node.gpus:g} GPUs, {node.memory_bytes / (1 << 30):.0f} GiB"
        kinds[kind] = kinds.get(kind, 0) + 1
    text = "; ".join(f"{count} with {kind}" for kind, count in kinds.items()) or "none"
    if len(nodes) == 1 and pool.spread is Spread.STRICT and not pool.max_nodes:
        fix = "Add Ray nodes, set `max_nodes:` where the cluster grows by itself, or `spread: pack`."
        return Finding(check="nodes", verdict=Verdict.WARNING, text=f"{text}: no gang of two nodes fits.", fix=fix)
    return Finding(check="nodes", verdict=Verdict.OK if nodes else Verdict.FAILED, text=f"{text}.")


def _unseen(pool: RayPool, home: Home) -> Finding:
    text = f"Every Ray node has to see {home.path}, where the runs are, under the same path."
    fix = f"See whether they do: gangline pools doctor {pool.name} --deep."
    return Finding(check="state folder", verdict=Verdict.WARNING, text=text, fix=fix)


def _folder(pool: RayPool, api: JobsApi, home: Home, sleep: Callable[[float], None]) -> list[Finding]:
    """What all Ray nodes see of the state folder, by a tiny job."""
    import json  # noqa: PLC0415 - of this look alone
    import shlex  # noqa: PLC0415 - the same

    name = f"gangline-doctor-{secrets.token_hex(6)}"
    command = shlex.join([pool.python, "-I", "-c", _DEEP, str(home.path)])
    try:
        api.submit({"submission_id": name, "entrypoint": command, "metadata": {"job_name": "gangline-doctor"}})
        job = _wait(api, name, sleep)
        log = api.log(name)
    except BackendError as error:
        return [Finding(check="state folder", verdict=Verdict.FAILED, text=f"{error.what}: {error.why}.")]
    marked = [line.removeprefix("gangline-doctor ") for line in log.splitlines() if line.startswith("gangline-doctor ")]
    if job is None or job.status != "SUCCEEDED" or not marked:
        last = (log.strip() or "it has printed nothing").splitlines()[-1]
        fix = f"`{pool.python}` on the head has to be the interpreter of the cluster's Ray: set `python:`."
        return [
            Finding(check="driver", verdict=Verdict.FAILED, text=f"The job did not come to its end: {last}", fix=fix)
        ]
    seen: list[tuple[str, bool]] = json.loads(marked[-1])
    blind = [host for host, sees in seen if not sees]
    driver = Finding(check="driver", verdict=Verdict.OK, text=f"`{pool.python}` on the head runs the cluster's Ray.")
    if blind:
        text = f"{', '.join(blind)} cannot read and write {home.path}."
        fix = "Mount it there under the same path, for its user, or move GANGLINE_HOME to a shared folder."
        return [driver, Finding(check="state folder", verdict=Verdict.FAILED, text=text, fix=fix)]
    text = f"All {len(seen)} Ray nodes read and write {home.path}."
    return [driver, Finding(check="state folder", verdict=Verdict.OK, text=text)]


def _wait(api: JobsApi, name: str, sleep: Callable[[float], None]) -> Job | None:
    """The job once it is over; None: it is not in time, and was stopped."""
    for _ in range(int(_DEEP_S / _PAUSE_S)):
        job = next((job for job in api.jobs() if job.submission_id == name), None)
        if job is not None and job.is_over:
            return job
        sleep(_PAUSE_S)
    api.stop(name)
    return None
