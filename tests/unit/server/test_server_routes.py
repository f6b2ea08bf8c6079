from __future__ import annotations

import hashlib
import math

import pytest

from gangline.domain.errors import InvalidRequest
from gangline.server.answers import encode
from gangline.server.routes_code import parse_contents
from gangline.testing.commands import make_event, make_summary

V1 = "/api/v1"
SPEC = {"entry": "train.py"}


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def error_of(answer):
    return answer.json()["error"]


def test_health_says_who_answers(api):
    api.commands.runs["a"] = make_summary(id="a")
    health = api.http.get(f"{V1}/health").json()
    assert (health["runs_live"], health["runs_queued"]) == (1, 0)
    assert health["home"] == str(api.home.path)
    assert health["rss_bytes"] > 1_000_000


def test_submit_creates_a_run_once_for_a_key(api):
    body = {"spec": SPEC, "client": {"user": "bob"}, "key": "k1"}
    first, second = (api.http.post(f"{V1}/runs", json=body) for _ in range(2))
    assert first.status_code == 201
    assert first.json()["id"] == second.json()["id"]
    assert len(api.commands.runs) == 1
    assert first.json()["spec"]["entry"] == "train.py"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({"spec": {"entry": "a.py", "nodess": 2}, "key": "k"}, "spec_invalid", "nodess"),
        ({"spec": {"entry": "a.py"}}, "invalid_request", "key"),
        ({"spec": {}, "key": "k"}, "spec_invalid", "nothing to run"),
        ({"spec": {"entry": "a.py", "resources": {"nodes": 0}}, "key": "k"}, "spec_invalid", "resources.nodes"),
        ({"spec": [], "key": "k"}, "invalid_request", "spec"),
        ({"spec": SPEC, "key": "k", "extra": 1}, "invalid_request", "extra"),
        ({"spec": SPEC, "key": "k" * 300}, "invalid_request", "key"),
    ],
)
def test_a_bad_submit_is_one_clear_error_and_nothing_is_stored(api, body, code, says):
    answer = api.http.post(f"{V1}/runs", json=body)
    assert answer.status_code == 422
    assert error_of(answer)["code"] == code
    assert says in error_of(answer)["what"]
    assert api.commands.runs == {}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1, 2]", b'"text"', b"null"])
def test_a_body_that_is_no_json_object_is_refused(api, content):
    answer = api.http.post(f"{V1}/runs", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert error_of(answer)["code"] == "invalid_request"


def test_check_stores_nothing(api):
    answer = api.http.post(f"{V1}/runs/check", json={"spec": SPEC})
    assert answer.json()["launch"]["commands"] == [["agent", "train.py"]]
    assert api.commands.runs == {}


def test_runs_are_listed_by_several_phases_newest_first(api):
    for number, phase in enumerate(["running", "failed", "queued", "running"]):
        api.commands.runs[str(number)] = make_summary(id=str(number), phase=phase, created=float(number))
    answer = api.http.get(f"{V1}/runs", params={"phase": ["running", "queued"], "limit": 2})
    assert [run["id"] for run in answer.json()] == ["3", "2"]


def test_limit_0_is_every_run(api):
    api.http.get(f"{V1}/runs", params={"limit": 0})
    assert api.commands.calls[-1][-1] > 1_000_000


def test_an_unknown_phase_names_the_nearest(api):
    answer = api.http.get(f"{V1}/runs", params={"phase": "runing"})
    assert "`running`" in error_of(answer)["fix"]


def test_a_run_is_found_by_its_beginning(api):
    api.commands.runs["train-2abc"] = make_summary()
    assert api.http.get(f"{V1}/runs/train").json()["id"] == "train-2abc"
    assert api.http.get(f"{V1}/runs/latest").json()["id"] == "train-2abc"
    assert api.http.get(f"{V1}/runs/other").status_code == 404


def test_wait_returns_at_once_for_another_version_and_for_the_end(api):
    api.commands.runs["a"] = make_summary(id="a", version=4)
    assert api.http.get(f"{V1}/runs/a/wait", params={"version": 3, "timeout_s": 100}).json()["version"] == 4
    api.commands.runs["a"] = make_summary(id="a", version=5, phase="failed")
    assert api.http.get(f"{V1}/runs/a/wait", params={"version": 5, "timeout_s": 100}).json()["phase"] == "failed"


def test_wait_gives_up_after_its_time(api):
    api.commands.runs["a"] = make_summary(id="a", version=4)
    assert api.http.get(f"{V1}/runs/a/wait", params={"version": 4, "timeout_s": 0.01}).json()["version"] == 4


def test_wait_ends_with_the_server(api):
    api.commands.runs["a"] = make_summary(id="a", version=4)
    api.parts.stopping.begin()
    assert api.http.get(f"{V1}/runs/a/wait", params={"version": 4, "timeout_s": 200}).status_code == 200


@pytest.mark.parametrize("grace_s", [None, 0, 2.5])
def test_stop_passes_the_grace_on(api, grace_s):
    api.commands.runs["a"] = make_summary(id="a")
    answer = api.http.post(f"{V1}/runs/a/stop", json={"grace_s": grace_s})
    assert answer.json()["phase"] == "stopping"
    assert api.commands.calls[-1] == ("stop", "a", grace_s, "alice")


@pytest.mark.parametrize("body", [{"grace_s": -1}, {"grace_s": "soon"}, {"grace": 3}])
def test_a_bad_stop_is_refused(api, body):
    api.commands.runs["a"] = make_summary(id="a")
    assert api.http.post(f"{V1}/runs/a/stop", json=body).status_code == 422
    assert api.commands.calls == []


def test_stopping_the_server_only_says_so(api):
    assert api.http.post(f"{V1}/server/stop").status_code == 202
    assert api.parts.stopping.begun()


def test_events_after_a_number(api):
    api.commands.runs["a"] = make_summary(id="a")
    api.commands.history["a"] = [make_event(number) for number in range(3)]
    answer = api.http.get(f"{V1}/runs/a/events", params={"after": 0})
    assert [event["seq"] for event in answer.json()] == [1, 2]


@pytest.mark.parametrize("name", ["loss", "train/loss", "a b", "100%", "ü", "x?y#z"])
def test_metric_names_may_hold_anything(api, name):
    api.commands.runs["a"] = make_summary(id="a")
    assert api.client.metric("a", name)["name"] == name


def test_numbers_that_json_has_no_form_for_become_null():
    value = {"loss": math.nan, "all": [1.0, math.inf, {"x": -math.inf}], "ok": 0.5}
    assert encode(value) == b'{"loss":null,"all":[1.0,null,{"x":null}],"ok":0.5}'


def test_contents_are_stored_and_read_back(api):
    data = b"\n0\n" * 1000
    digest = digest_of(data)
    assert api.client.missing_objects([digest, digest]) == [digest]
    assert api.client.put_objects({digest: data, digest_of(b""): b""}) == 2
    assert api.client.missing_objects([digest]) == []
    assert b"".join(api.client.object(digest)) == data


def test_one_large_content_is_streamed(api):
    data = bytes(range(256)) * 20_000
    digest = digest_of(data)
    api.client.put_object(digest, lambda: iter([data[:1_000_000], data[1_000_000:]]))
    assert b"".join(api.client.object(digest)) == data


def test_a_content_that_is_not_what_its_digest_says_is_refused(api):
    digest = digest_of(b"one")
    assert api.http.put(f"{V1}/objects/{digest}", content=b"other").status_code == 422
    assert api.client.missing_objects([digest]) == [digest]


@pytest.mark.parametrize("digest", ["..%2f..%2fetc%2fpasswd", "a" * 63, "G" * 64, "A" * 64])
def test_what_is_no_digest_reaches_no_file(api, digest):
    assert api.http.get(f"{V1}/objects/{digest}").status_code in {404, 422}
    assert api.http.put(f"{V1}/objects/{digest}", content=b"x").status_code in {404, 422}


@pytest.mark.parametrize("body", [b"x", b"x\n", b"x\n5\nabc", b"x\nfive\nabcde", b"x\n1\nab", b"\n\n\n"])
def test_a_torn_batch_is_refused(body):
    with pytest.raises(InvalidRequest):
        list(parse_contents(body))


def test_a_manifest_without_its_contents_is_refused(api):
    digest = digest_of(b"x")
    manifest = {"version": 1, "files": [{"path": "a.py", "kind": "file", "mode": 420, "size": 1, "digest": digest}]}
    answer = api.http.post(f"{V1}/snapshots", json=manifest)
    assert error_of(answer)["code"] == "snapshot_refused"
    api.client.put_objects({digest: b"x"})
    stored = api.client.put_snapshot(manifest)
    assert api.client.snapshot(stored)["files"] == manifest["files"]


def test_nodes_are_listed_and_cleared(api):
    assert api.client.nodes("local") == []
    assert api.client.clear_node("h1", pool="a") == {"host": "h1", "pools": ["a"]}
    assert api.client.clear_node("h2")["pools"] == ["local"]
    told = [call for call in api.commands.calls if "node" in call[0]]
    assert [call[:3] for call in told] == [("nodes", "local"), ("clear_node", "h1", "a"), ("clear_node", "h2", None)]
    assert api.http.post(f"{V1}/pools/nodes/clear", json={"node": "h", "extra": 1}).status_code == 422


def test_a_run_is_removed_by_its_whole_id_alone(api):
    api.commands.runs["train-2abc"] = make_summary(id="train-2abc", phase="failed")
    assert api.http.get(f"{V1}/runs/train-2/size").json()["id"] == "train-2abc"
    assert api.http.delete(f"{V1}/runs/train-2").status_code == 404
    assert api.http.delete(f"{V1}/runs/train-2abc", params={"keep_checkpoints": True}).json()["id"] == "train-2abc"
    assert ("remove", "train-2abc", True) in api.commands.calls
    assert api.http.delete(f"{V1}/runs/train-2abc").status_code == 404


def test_unused_code_is_freed_when_asked(api):
    assert api.http.post(f"{V1}/objects/free").json()["num_objects"] == 3
