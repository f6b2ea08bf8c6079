"""What Ray is given, what its Jobs API answers, and what an examination says."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from gangline.backends.ray.api import JobsApi
from gangline.backends.ray.backend import RayBackend
from gangline.backends.ray.doctor import examine
from gangline.backends.ray.render import parse_id, render_launch, submission_id
from gangline.backends.ray.watch import Watcher
from gangline.domain.errors import AuthFailed, Rejected, SpecInvalid, Transient
from gangline.domain.pool import PoolStatus, RayPool, Spread, Verdict
from gangline.domain.spec import RunSpec, SlurmOptions
from gangline.rundir.home import Home
from gangline.testing import make_gang
from gangline.wire.pools import pool_from_mapping, pool_to_mapping


def api(answer, **settings) -> JobsApi:
    """One that answers as a function of the request does."""
    return JobsApi(pool(**settings), transport=httpx.MockTransport(answer))


def pool(**settings) -> RayPool:
    return RayPool(name="warm", address="http://head:8265", **settings)


def answer_of(texts: dict[str, object], status: int = 200):
    return lambda request: httpx.Response(status, json=texts.get(request.url.path, {}))


def nodes(*cpus: float) -> dict:
    found = [
        {"state": "ALIVE", "node_name": "n", "resources_total": {"CPU": one, "GPU": 1, "memory": 8e9}} for one in cpus
    ]
    return {"data": {"result": {"result": [*found, {"state": "DEAD"}]}}}


VERSION = {"session_name": "session_1", "ray_version": "2.60.0"}


def test_a_pool_is_read_and_written_back():
    raw = {"backend": "ray", "address": "http://head:8265", "spread": "pack", "poll": "2s", "env": {"A": "b"}}
    made = pool_from_mapping("warm", raw)
    assert made == pool(spread=Spread.PACK, poll_s=2.0, env={"A": "b"})
    assert pool_to_mapping(made) == raw


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "has no `address`"),
        ({"address": "head:8265"}, "the address of the dashboard"),
        ({"address": "http://h:1", "work": "/x"}, "It belongs to a pool with `backend: slurm`"),
        ({"address": "http://h:1", "poll": "0.1s"}, "at least 0.2s"),
        ({"address": "http://h:1", "token_file": "token"}, "absolute path"),
        ({"address": "http://h:1", "python": "python; rm"}, "a name that is looked up on PATH"),
        ({"address": "http://h:1", "spread": "wide"}, "strict"),
    ],
)
def test_a_slip_in_a_pool_is_named(keys, said):
    with pytest.raises(SpecInvalid, match=said):
        pool_from_mapping("warm", {"backend": "ray", **keys})


def test_a_job_is_known_by_home_run_and_launch():
    ours = parse_id(submission_id("0123456789ab", "llama-7k3q", 12))
    assert (ours.home, ours.run_id, ours.launch) == ("0123456789ab", "llama-7k3q", 12)
    assert parse_id("raysubmit_abc") is None


@pytest.mark.parametrize(("spread", "strategy"), [(Spread.STRICT, "STRICT_SPREAD"), (Spread.PACK, "PACK")])
def test_each_node_of_a_gang_is_a_bundle(spread, strategy):
    gang = make_gang(nodes=2)
    launch = render_launch(gang, pool(spread=spread), home="0" * 12, agent="/h/a.pyz", driver="/h/d.py")
    plan = json.loads(launch.files["launches/000/ray-plan.json"])
    assert (plan["strategy"], plan["bundles"]) == (strategy, [{"CPU": gang.procs_per_node}] * 2)
    assert [words[-1] for words in plan["agents"]] == ["0", "1"]
    request = json.loads(launch.files["launches/000/ray-job.json"])
    assert request["entrypoint"].endswith(f"exec python -I /h/d.py {gang.run_dir}/launches/000/ray-plan.json")


def test_only_a_pool_that_has_a_token_sends_one(tmp_path: Path):
    seen = []

    def answer(request):
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json=VERSION)

    api(answer).version()
    (tmp_path / "token").write_text("secret\n")
    api(answer, token_file=str(tmp_path / "token")).version()
    assert seen == [None, "Bearer secret"]


@pytest.mark.parametrize(
    ("status", "error"), [(401, AuthFailed), (403, AuthFailed), (500, Transient), (503, Transient), (404, Transient)]
)
def test_what_an_answer_means(status, error):
    with pytest.raises(error):
        api(answer_of({}, status)).jobs()


def test_a_job_that_ray_refuses_is_rejected_in_its_words():
    refuse = api(lambda _: httpx.Response(400, text="Traceback\nValueError: bad runtime_env\n"))
    with pytest.raises(Rejected, match="bad runtime_env"):
        refuse.submit({"submission_id": "x"})


def test_what_is_no_dashboard_ends_nothing():
    with pytest.raises(Transient, match="no dashboard of Ray"):
        api(lambda _: httpx.Response(200, text="<html>")).version()


def test_a_cluster_refuses_what_it_can_never_hold(tmp_path: Path):
    there = {"/api/v0/nodes": nodes(4, 4)}
    for settings, most in (({}, 2), ({"spread": Spread.PACK}, 1_000_000), ({"max_nodes": 9}, 9)):
        one = api(answer_of(there), **settings)
        backend = RayBackend(Home(tmp_path / "home").create(), pool(**settings), one, Watcher(one, poll_s=1.0))
        assert backend.capacity().nodes == most


def test_a_look_falls_into_no_session_that_begins_meanwhile():
    sessions = iter(["a", "b", "b"])
    lists = iter([[{"submission_id": "old", "status": "RUNNING"}], [{"submission_id": "new", "status": "RUNNING"}]])

    def answer(request):
        if request.url.path == "/api/version":
            return httpx.Response(200, json={"session_name": next(sessions)})
        return httpx.Response(200, json=next(lists))

    look = Watcher(api(answer), poll_s=1.0).look()
    assert (look.version.session, list(look.jobs)) == ("b", ["new"])


def test_a_pool_that_does_not_answer_says_since_when():
    times = iter([10.0, 20.0])
    watcher = Watcher(api(answer_of({}, 500)), poll_s=1.0, wall=lambda: next(times))
    watcher.look()
    watcher.look()
    assert (watcher.state().status, watcher.state().since) == (PoolStatus.UNREACHABLE, 10.0)


def test_an_examination_says_what_is_there(tmp_path: Path):
    there = {"/api/version": VERSION, "/api/jobs/": [], "/api/v0/nodes": nodes(4, 4, 8)}
    found = examine(pool(), api(answer_of(there)), Home(tmp_path), deep=False)
    assert [one.verdict for one in found] == [Verdict.OK, Verdict.OK, Verdict.WARNING]
    assert found[1].text == "2 with 4 CPUs, 1 GPUs, 7 GiB; 1 with 8 CPUs, 1 GPUs, 7 GiB."
    assert "pools doctor warm --deep" in found[2].fix


def test_an_examination_of_a_cluster_that_is_not_there_is_short(tmp_path: Path):
    (only,) = examine(pool(), api(answer_of({}, 502)), Home(tmp_path), deep=True)
    assert (only.check, only.verdict) == ("Jobs API", Verdict.FAILED)


@pytest.mark.parametrize(
    ("status", "log", "verdicts"),
    [
        ("SUCCEEDED", 'x\ngangline-doctor [["a", true], ["b", true]]\n', ["ok", "ok"]),
        ("SUCCEEDED", 'gangline-doctor [["a", true], ["b", false]]\n', ["ok", "failed"]),
        ("FAILED", "/bin/sh: 1: python: not found\n", ["failed"]),
        ("RUNNING", "", ["failed"]),
    ],
)
def test_a_deep_examination_asks_every_node(tmp_path: Path, status, log, verdicts):
    jobs: list[dict] = []

    def answer(request):
        path = request.url.path
        if request.method == "POST" and path == "/api/jobs/":
            jobs.append({**json.loads(request.content), "status": status})
        if path.endswith("/logs"):
            return httpx.Response(200, json={"logs": log})
        return httpx.Response(200, json={"/api/version": VERSION, "/api/jobs/": jobs}.get(path, nodes(4, 4)))

    found = examine(pool(), api(answer), Home(tmp_path), deep=True, sleep=lambda _: None)
    assert [one.verdict.value for one in found[2:]] == verdicts


def test_options_of_slurm_are_refused(tmp_path: Path):
    one = api(answer_of({}))
    backend = RayBackend(Home(tmp_path / "home").create(), pool(), one, Watcher(one, poll_s=1.0))
    with pytest.raises(SpecInvalid, match="It is a Ray cluster"):
        backend.site.check(RunSpec(pool="warm", slurm=SlurmOptions(partition="gpu")))
