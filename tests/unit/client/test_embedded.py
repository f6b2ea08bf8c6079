"""A server that does not start says why, and only what this start had to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.client import embedded
from gangline.domain.errors import ServerUnreachable
from gangline.rundir.home import Home


@pytest.mark.parametrize(("says", "shown"), [("port is taken", "port is taken"), ("", "It wrote nothing")])
@pytest.mark.parametrize("grown", [False, True])
def test_errors_of_earlier_starts_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, shown: str, *, grown: bool
):
    server = tmp_path / "server"
    server.write_text(f'#!/bin/sh\n[ -z "{says}" ] || echo "{says}" >&2\nexit 3\n')
    server.chmod(0o755)
    home = Home(tmp_path / "home")
    home.server_log.parent.mkdir(parents=True)
    home.server_log.write_text("an error of last week\n")
    monkeypatch.setattr(embedded.sys, "executable", str(server))
    if grown:
        monkeypatch.setattr(embedded, "_MAX_LOG_BYTES", 5)
    for _ in range(2):
        with pytest.raises(ServerUnreachable) as failed:
            embedded.start_server(home, lambda: None)
        assert "last week" not in str(failed.value)
        assert shown in str(failed.value)
        assert str(failed.value).count("port is taken") == (1 if says else 0)


@pytest.mark.parametrize(("kills", "starts"), [(2, 3), (9, 3)])
def test_a_server_that_is_killed_while_it_starts_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, starts: int
):
    server, begun = tmp_path / "server", tmp_path / "begun"
    server.write_text(
        f'#!/bin/sh\necho >> "{begun}"\n[ "$(wc -l < "{begun}")" -gt {kills} ] || kill -9 $$\nexec sleep 1\n'
    )
    server.chmod(0o755)
    home = Home(tmp_path / "home")
    home.path.mkdir()
    monkeypatch.setattr(embedded.sys, "executable", str(server))

    def count() -> int:
        return len(begun.read_text().splitlines()) if begun.exists() else 0

    if kills < starts:
        assert embedded.start_server(home, lambda: True if count() == starts else None)
    else:
        with pytest.raises(ServerUnreachable, match="exit code -9"):
            embedded.start_server(home, lambda: None)
        assert count() == starts
