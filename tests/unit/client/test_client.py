from __future__ import annotations

import json

import httpx
import pytest

from gangline.client.client import Client
from gangline.client.connection import connect
from gangline.domain.errors import (
    Conflict,
    GanglineError,
    InvalidRequest,
    NotFound,
    ServerUnreachable,
    StillEnding,
    Unauthorized,
    VersionMismatch,
)
from gangline.domain.version import VERSION, speaks_same
from gangline.rundir.home import Home
from gangline.testing.commands import make_event, make_summary

HEADERS = {"X-Gangline-Version": VERSION}


def http_of(handler) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(handler), base_url="http://127.0.0.1:1")


def answer(value, status=200, headers=HEADERS) -> httpx.Response:
    return httpx.Response(status, json=value, headers=headers)


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("code", "status", "cls"),
    [("not_found", 404, NotFound), ("conflict", 409, Conflict), ("something_new", 500, GanglineError)],
)
def test_errors_become_exceptions_again(code, status, cls):
    error = {"error": {"code": code, "what": "W", "why": "Y", "fix": "F"}}
    with pytest.raises(cls) as raised:
        Client(http_of(lambda _: answer(error, status))).run("a")
    assert str(raised.value) == "W. Y. F."


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"detail": "x"}', b'{"error": "text"}', b"[1]"])
def test_an_error_without_its_shape_is_still_one(body):
    http = http_of(lambda _: httpx.Response(500, content=body, headers=HEADERS))
    with pytest.raises(GanglineError, match="status 500"):
        Client(http).run("a")


def test_another_programs_answer_is_not_taken_for_the_servers():
    with pytest.raises(ServerUnreachable, match="no Gangline server"):
        Client(http_of(lambda _: answer({}, headers={}))).health()


def test_a_server_of_another_version_is_named_with_the_way_out():
    http = http_of(lambda _: answer({}, headers={"X-Gangline-Version": "9.9.0"}))
    with pytest.raises(VersionMismatch, match=r"9\.9\.0.*gangline server stop"):
        Client(http).health()
    assert Client(http, any_version=True).health() == {}


@pytest.mark.parametrize(
    ("one", "other", "same"), [("0.1.0", "0.1.9", True), ("0.1.0", "0.2.0", False), ("1.0", "2.0", False)]
)
def test_versions_that_speak_the_same(one, other, same):
    assert speaks_same(one, other) is same


def test_without_a_way_back_a_broken_connection_is_an_error():
    with pytest.raises(ServerUnreachable, match="does not answer"):
        Client(http_of(refuse)).health()


def test_a_call_goes_on_over_a_new_server():
    client = Client(http_of(refuse), reconnect=lambda: http_of(lambda _: answer({"pid": 1})))
    assert client.health() == {"pid": 1}


def test_a_call_is_repeated_a_few_times_and_no_more():
    tries = []
    client = Client(http_of(refuse), reconnect=lambda: tries.append(1) or http_of(refuse))
    with pytest.raises(ServerUnreachable):
        client.health()
    assert tries == [1, 1, 1]


def test_wait_without_a_version_lasts_until_the_end():
    phases = ["queued", "starting", "running", "succeeded"]
    answers = [answer(make_summary(id="a", phase=phase, version=n)) for n, phase in enumerate(phases)]
    client = Client(http_of(lambda _: answers.pop(0)))
    assert client.wait("a", timeout_s=60.0)["phase"] == "succeeded"
    assert answers == []
    again = Client(http_of(lambda _: answer(make_summary(id="a", phase="running"))))
    assert again.wait("a", timeout_s=0.0)["phase"] == "running"


def test_resume_waits_for_a_run_that_is_still_ending(monkeypatch):
    monkeypatch.setattr("gangline.client.client._ENDING_S", 0.0)
    ending = {"error": {"code": "still_ending", "what": "W", "why": "", "fix": ""}}
    answers = [answer(ending, 409), answer(ending, 409), answer(make_summary(id="a"))]
    client = Client(http_of(lambda _: answers.pop(0)))
    assert client.resume("a")["id"] == "a"
    answers += [answer(ending, 409)]
    with pytest.raises(StillEnding):
        client.resume("a", patience_s=0.0)


def test_resume_is_not_repeated_once_it_may_have_happened():
    def cut_off(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("cut off", request=request)

    reconnects = []
    client = Client(http_of(cut_off), reconnect=lambda: reconnects.append(1) or http_of(cut_off))
    with pytest.raises(ServerUnreachable):
        client.resume("a")
    assert reconnects == []


def test_texts_that_are_not_utf_8_travel():
    seen = []
    http = http_of(lambda request: seen.append(json.loads(request.content)) or answer({"id": "a"}, 201))
    Client(http).submit({"args": ["\udcff"]}, client={}, key="k")
    assert seen[0]["spec"] == {"args": ["\udcff"]}


@pytest.mark.parametrize("run", ["..", ".", "a?b", "#", "ü", "a b", "%2F"])
def test_odd_run_names_stay_one_part_of_the_path(run):
    seen = []
    http = http_of(lambda request: seen.append(request.url.raw_path) or answer({}))
    Client(http).run(run)
    assert seen[0].count(b"/") == 4
    assert b"?" not in seen[0]


@pytest.mark.parametrize("run", ["", " ", "a/b", "../pools"])
def test_names_that_no_run_has_are_not_even_asked_for(run):
    with pytest.raises(NotFound):
        Client(http_of(refuse)).run(run)


def test_list_runs_through_the_real_routes(api):
    for number in range(3):
        api.commands.runs[str(number)] = make_summary(id=str(number), created=float(number))
    assert [run["id"] for run in api.client.list_runs(limit=None)] == ["2", "1", "0"]
    assert api.client.list_runs(phases=["failed"]) == []


def test_list_runs_by_label_through_the_real_routes(api):
    for number in range(3):
        api.commands.runs[str(number)] = make_summary(id=str(number), labels={"team": "nlp", "n": str(number)})
    assert [run["id"] for run in api.client.list_runs(labels=["team=nlp", "n=1"])] == ["1"]
    with pytest.raises(InvalidRequest, match="`team` is no label"):
        api.client.list_runs(labels=["team"])


# following


class Streams:
    """Serves one prepared stream after another; remembers what was asked."""

    def __init__(self, *streams) -> None:
        self.streams = list(streams)
        self.queries: list[dict[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.queries.append(dict(request.url.params))
        items = self.streams.pop(0)
        if isinstance(items, Exception):
            raise items
        body = "".join(json.dumps(item) + "\n" if item else "\n" for item in items)
        return httpx.Response(200, content=body.encode(), headers=HEADERS)


def chunk(rank: int, offset: int, text: str, attempt: int = 0) -> dict:
    end = offset + len(text)
    return {"rank": rank, "attempt": attempt, "offset": offset, "next_offset": end, "size": end, "text": text}


END = {"end": {"id": "a", "phase": "succeeded"}}


def follow(streams: Streams, **options) -> list[dict]:
    return list(Client(http_of(streams), reconnect=lambda: http_of(streams)).follow("a", **options))


def test_a_broken_stream_goes_on_where_it_stopped(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    first = [{"event": make_event(3)}, chunk(0, 0, "ab"), None, chunk(1, 0, "x")]
    streams = Streams(first, httpx.ConnectError("away"), [chunk(0, 2, "c"), END])
    items = follow(streams, attempt=0)
    assert [item["text"] for item in items if "text" in item] == ["ab", "x", "c"]
    assert items[-1] == END
    assert streams.queries[-1] == {"attempt": "0", "after": "3", "offsets": "0:2,1:1"}


def test_offsets_of_an_attempt_end_with_it():
    streams = Streams([chunk(0, 0, "abc"), chunk(1, 0, "x", attempt=1)], [END])
    follow(streams, tail=5)
    assert streams.queries[0] == {"tail": "5", "after": "-1"}
    assert streams.queries[1] == {"attempt": "1", "after": "-1", "offsets": "1:1"}


def test_ranks_and_offsets_of_the_caller_are_sent():
    streams = Streams([END])
    follow(streams, ranks=[0, 2], attempt=1, offsets={2: 7})
    assert streams.queries == [{"ranks": "0,2", "attempt": "1", "after": "-1", "offsets": "2:7"}]


def test_a_server_that_stays_away_ends_the_follow_with_an_error(monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    with pytest.raises(ServerUnreachable, match="did not come back"):
        follow(Streams(*[httpx.ConnectError("away")] * 100))
    assert 30 < sum(pauses) < 90


def test_an_error_of_the_server_is_not_repeated():
    error = {"error": {"code": "not_found", "what": "no run", "why": "", "fix": ""}}
    http = http_of(lambda _: answer(error, 404))
    with pytest.raises(NotFound):
        list(Client(http, reconnect=lambda: http).follow("a"))


# connecting


def test_looking_starts_nothing(tmp_path):
    with pytest.raises(ServerUnreachable, match="No server runs"):
        connect(Home(tmp_path / "none"), start=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("environ", "cls"),
    [
        ({"GANGLINE_SERVER": "example.com", "GANGLINE_TOKEN": "t"}, InvalidRequest),
        ({"GANGLINE_SERVER": "https://example.com"}, Unauthorized),
    ],
)
def test_a_remote_server_needs_a_url_and_a_token(environ, cls):
    with pytest.raises(cls):
        connect(environ=environ)


def test_a_remote_server_is_reached_with_its_token():
    client = connect(environ={"GANGLINE_SERVER": "https://example.com/", "GANGLINE_TOKEN": "t"})
    assert client.url == "https://example.com"
    assert client._http.headers["Authorization"] == "Bearer t"


def test_a_state_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"cannot be used.*GANGLINE_HOME"):
        connect(Home(tmp_path / "file"))
