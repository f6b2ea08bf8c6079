from __future__ import annotations

import logging

import pytest

from gangline.domain.version import VERSION

HEALTH = "/api/v1/health"


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (None, "no token"),
        ("", "no token"),
        ("Basic c2VjcmV0", "no token"),
        ("Bearer wrong", "wrong token"),
        ("Bearer ", "wrong token"),
        ("Bearer secret-of-the-tests-and-more", "wrong token"),
    ],
)
def test_strangers_are_refused(api, header, what):
    api.http.headers.pop("Authorization")
    answer = api.http.get(HEALTH, headers={} if header is None else {"Authorization": header})
    assert answer.status_code == 401
    assert what in answer.json()["error"]["what"]
    assert answer.headers["X-Gangline-Version"] == VERSION


@pytest.mark.parametrize("path", [HEALTH, "/api/v1/openapi.json", "/", "/api/v1/nothing"])
def test_every_path_needs_the_token(api, path):
    api.http.headers.pop("Authorization")
    assert api.http.get(path).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:4321", "localhost", "localhost:1", "[::1]:80"])
def test_loopback_names_are_served(api, host):
    assert api.http.get(HEALTH, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80", "[", "10.0.0.1"])
def test_a_rebound_name_is_refused(api, host):
    answer = api.http.get(HEALTH, headers={"Host": host})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "invalid_request"


def test_what_nobody_foresaw_has_a_number_that_the_log_explains(api, caplog, monkeypatch):
    def broken():
        raise RuntimeError("a broken disk")

    monkeypatch.setattr(api.commands, "pools", broken)
    with caplog.at_level(logging.ERROR):
        answer = api.http.get("/api/v1/pools")
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "internal"
    number = error["fix"].split("under ")[1][:8]
    assert number in caplog.text
    assert "a broken disk" in caplog.text


def test_a_path_that_is_none_says_so(api):
    answer = api.http.get("/api/v1/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    wrong_verb = api.http.delete(HEALTH)
    assert wrong_verb.status_code == 405
    assert wrong_verb.json()["error"]["why"] == "Method Not Allowed"
