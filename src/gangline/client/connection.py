"""Find the server: the one that GANGLINE_SERVER names, else the embedded one of the state folder, started if need be.

Imports httpx and the standard library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gangline.client.answers import unreachable
from gangline.client.client import API, Client
from gangline.client.embedded import mute, start_server
from gangline.client.http import httpx
from gangline.domain.errors import GanglineError, InvalidRequest, ServerUnreachable, StorageFull, Unauthorized
from gangline.domain.version import VERSION, digest_code
from gangline.rundir.home import Home
from gangline.rundir.reserve import release_reserve
from gangline.rundir.serving import ServerInfo, is_served, read_live_server, read_token
from gangline.rundir.space import is_out_of_room

__all__ = ["connect"]

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_PROBE = httpx.Timeout(5.0, connect=1.0)
_DYING_S = 2.0
_LOOK_AGAIN_S = 0.01


def connect(home: Home | None = None, *, start: bool = True, environ: Mapping[str, str] = os.environ) -> Client:
    """A client of the server that this shell means.

    Args:
        home: the state folder of an embedded server; None: what the environment says (GANGLINE_SERVER and
            GANGLINE_TOKEN, else GANGLINE_HOME).
        start: start an embedded server where none runs, and another one for an idle one of other code. False is for
            looking: nothing is started, neither later when the connection breaks, and a server of another version is
            talked to as well.
    Raises:
        ServerUnreachable: none runs and none was to be started, or it does not come up.
        InvalidRequest: the state folder cannot be used.
        StorageFull: its disk is full, and so is the room that was set aside.
        VersionMismatch: from the first call, if the server is of another version.
    """
    url = environ.get("GANGLINE_SERVER", "")
    if home is None and url:
        return _connect_remote(url, environ.get("GANGLINE_TOKEN", ""), any_version=not start)
    found = _Embedded(home or Home.from_env(environ))
    http = found.find_or_start() if start else found.find()
    if http is None:
        none = ServerUnreachable(f"No server runs for {found.home.path}", fix="Any other command starts one.")
        raise mute(found.home) or none
    client = Client(http, reconnect=found.find_or_start if start else None, any_version=not start)
    client.is_of_other_code = start and found.is_of_other_code()
    return client


def _connect_remote(url: str, token: str, *, any_version: bool) -> Client:
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"GANGLINE_SERVER is `{url}`", fix="Write a URL such as https://gangline.example.com.")
    if not token:
        raise Unauthorized("GANGLINE_SERVER is set and GANGLINE_TOKEN is not", fix="Set GANGLINE_TOKEN to your token.")

    def make() -> httpx.Client:
        return _http(url.rstrip("/"), token, trust_env=True)

    return Client(make(), reconnect=make, any_version=any_version)


@dataclass(frozen=True, slots=True)
class _Embedded:
    """The server of one state folder."""

    home: Home

    def find_or_start(self) -> httpx.Client:
        """A connection to the server that lives, else to a new one."""
        found = self.find()
        if found is not None and not self._gives_way(found):
            return found
        _prepare(self.home)
        return start_server(self.home, self.find)

    def is_of_other_code(self) -> bool:
        """Whether the server that lives was started by other code of this version: an update, or another install."""
        info = read_live_server(self.home)
        return info is not None and info.version == VERSION and info.code != digest_code()

    def _gives_way(self, http: httpx.Client) -> bool:
        """End a server of other code, if it has nothing to do; whether it has gone."""
        if not self.is_of_other_code():
            return False
        with suppress(httpx.HTTPError, ValueError, KeyError):
            health = http.get(f"{API}/health").json()
            if health["runs_live"] or health["runs_queued"]:
                return False
            http.post(f"{API}/server/stop")
            deadline = time.monotonic() + _DYING_S
            while is_served(self.home) and time.monotonic() < deadline:
                time.sleep(_LOOK_AGAIN_S)
        if is_served(self.home):
            return False
        http.close()
        return True

    def find(self) -> httpx.Client | None:
        """A connection to the server, if one answers."""
        deadline = time.monotonic() + _DYING_S
        while True:
            try:
                return self._look()
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:  # noqa: PERF203 - a few tries
                # It was killed as we asked. Its lock is free in a moment, and the next look tells.
                if time.monotonic() > deadline:
                    raise unreachable(str(self.home.path), error) from error
                time.sleep(_LOOK_AGAIN_S)

    def _look(self) -> httpx.Client | None:
        try:
            if not is_served(self.home):
                return None
            info = read_live_server(self.home)
            # Not before a server has looked: reading takes others' access away, and it has to see that they had it.
            token = None if info is None else read_token(self.home)
        except OSError as error:
            raise _unusable(self.home, error) from error
        try:
            return _probe(info, token) if info and token else None
        except ServerUnreachable as error:
            raise mute(self.home) or error from error


def _probe(info: ServerInfo, token: str) -> httpx.Client | None:
    """A connection, if the address answers; what it answers is for the first call to judge.

    Raises:
        httpx.TransportError: the server went away while it was asked.
        ServerUnreachable: it does not answer in time.
    """
    http = _http(f"http://127.0.0.1:{info.port}", token, trust_env=False)
    try:
        http.get(f"{API}/health", timeout=_PROBE)
    except httpx.ConnectError:
        http.close()
        return None
    except httpx.TimeoutException as error:
        http.close()
        raise unreachable(str(http.base_url), error) from error
    except httpx.TransportError:
        http.close()
        raise
    return http


def _http(url: str, token: str, *, trust_env: bool) -> httpx.Client:
    """A client for one server.

    Args:
        trust_env: obey proxy settings; never for loopback.
    """
    transport = None if trust_env else httpx.HTTPTransport(verify=False)  # plain HTTP needs no certificates loaded
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT, transport=transport, trust_env=trust_env)


def _prepare(home: Home) -> None:
    """Make the state folder, and refuse one that a server could not use.

    Raises:
        InvalidRequest, StorageFull
    """
    try:
        try:
            _probe_writing(home)
        except OSError as error:
            if not (is_out_of_room(error) and release_reserve(home.path)):
                raise
            _probe_writing(home)
        owner = home.path.stat().st_uid
    except OSError as error:
        raise _unusable(home, error) from error
    if owner != os.geteuid():
        raise InvalidRequest(
            f"The state folder {home.path} belongs to another user (uid {owner})",
            why="It holds your token and runs, so it has to be yours alone.",
            fix="Set GANGLINE_HOME to a folder of your own.",
        )


def _probe_writing(home: Home) -> None:
    home.create()
    probe = home.path / f".write-test-{os.getpid()}"
    try:
        probe.write_bytes(b"x" * 4096)
    finally:
        probe.unlink(missing_ok=True)


def _unusable(home: Home, error: OSError) -> GanglineError:
    if is_out_of_room(error):
        return StorageFull.of_home(home.path, error.strerror or str(error))
    return InvalidRequest(
        f"The state folder {home.path} cannot be used",
        why=error.strerror or str(error),
        fix="Allow reading and writing there, or set GANGLINE_HOME to another folder.",
    )
