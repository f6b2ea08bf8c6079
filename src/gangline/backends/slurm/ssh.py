"""The system's own `ssh`: its argument vectors, and what its words mean. Touches nothing but the socket's folder.

One connection for each pool: the bridge's `ssh` opens it and listens on a socket in a private folder, at which other
commands of the pool ride along. Where a person has to type something, their own `ssh` opens it at the same socket.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.errors import AuthFailed, BackendError, HostKeyChanged, Transient
from gangline.domain.pool import SlurmPool

__all__ = ["Reach", "classify", "make_socket_folder", "reach_of", "render_environ"]

_LONGEST_SOCKET = 85
"""ssh makes the socket under a name that is 17 bytes longer; 108 are what the system takes."""
_PERSIST = "12h"
_ALIVE = ("ServerAliveInterval=10", "ServerAliveCountMax=2")
_QUIET = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ConnectionAttempts=1",
    "ControlPersist=no",
    "LogLevel=ERROR",
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
)
_CHANGED_KEY = re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .{1,200} has changed", re.IGNORECASE)
_OFFENDING = re.compile(r"Offending (?P<kind>\S+) key in (?P<file>\S+?):(?P<line>\d+)")
_SHOWN_KEY = re.compile(r"\b(?:SHA256|MD5):[A-Za-z0-9+/=:]+")
_UNKNOWN_KEY = re.compile(r"Host key verification failed|No \S+ host key is known|authenticity of host", re.IGNORECASE)
_DENIED = re.compile(r"Permission denied \((?P<methods>[^)]*)\)")
_REFUSED = re.compile(
    r"Permission denied|Too many authentication failures|No more authentication methods|password has expired"
    r"|account (?:has expired|is locked|is currently not available)",
    re.IGNORECASE,
)
_CONFIG = re.compile(
    r"Bad configuration option|Can't open user config file|Bad owner or permissions|terminating, \d+ bad configuration",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How one pool's login node is reached."""

    pool: str
    host: str
    options: tuple[str, ...]
    """The pool's own, ahead of the host."""
    socket: Path

    def bridge_command(self, remote: str, *, extra: tuple[str, ...] = ()) -> list[str]:
        """Run a command there without ever asking anybody anything; opens the shared connection if there is none."""
        return ["ssh", *self._shared("auto"), *_given(*_ALIVE, *_QUIET, *extra), *self.options, self.host, remote]

    def login_command(self, *, asks: bool = False) -> list[str]:
        """What a person types where something has to be typed: opens the shared connection, and leaves it open.

        Args:
            asks: about a host key that is not known, where the user's configuration would take any.
        """
        strict = ("StrictHostKeyChecking=ask",) if asks else ()
        persist = (f"ControlPersist={_PERSIST}", "ClearAllForwardings=yes", *_ALIVE, *strict)
        return ["ssh", *self._shared("yes"), *_given(*persist), *self.options, "-fN", self.host]

    def shell_command(self) -> list[str]:
        """For a person at a terminal, who rides on the shared connection if there is one; a command may follow."""
        return ["ssh", *self._shared("no"), *self.options, self.host]

    def check_command(self) -> list[str]:
        """Ends with 0 where somebody holds the shared connection."""
        return ["ssh", *self._shared("no"), *self.options, "-O", "check", self.host]

    def config_command(self) -> list[str]:
        """Prints what the user's configuration makes of the host."""
        return ["ssh", *self.options, "-G", self.host]

    def _shared(self, master: str) -> list[str]:
        return _given(f"ControlMaster={master}", f"ControlPath={self.socket}")


def reach_of(pool: SlurmPool, home: Path) -> Reach | None:
    """How a pool is reached from this state folder; None: it is this machine."""
    if pool.ssh is None:
        return None
    name = hashlib.sha256("\0".join((pool.name, pool.ssh, *pool.ssh_options)).encode()).hexdigest()[:12]
    folder = home / "ssh"
    if len(os.fsencode(folder / name)) > _LONGEST_SOCKET or "%" in str(folder):
        mark = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"gangline-{os.getuid()}-{mark}"
    return Reach(pool=pool.name, host=pool.ssh, options=pool.ssh_options, socket=folder / name)


def make_socket_folder(reach: Reach) -> None:
    """Make the folder of the socket, for its owner alone.

    Raises:
        Transient: somebody else's folder is in its place.
    """
    folder = reach.socket.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            folder.chmod(0o700)
            return
        why = "It belongs to somebody else, or is no folder"
    except OSError as error:
        why = error.strerror or str(error)
    raise Transient(f"`{folder}`, where the connection's socket would lie, cannot be used", why=why, fix="Remove it.")


def render_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """For an `ssh` in the background: nobody is asked, in no window either."""
    kept = {name: value for name, value in environ.items() if name not in {"SSH_ASKPASS", "DISPLAY"}}
    return {**kept, "SSH_ASKPASS_REQUIRE": "never"}


def classify(said: str, reach: Reach, config: Mapping[str, str] | None = None) -> BackendError:
    """What a connection that did not come about means, by what `ssh` has written to its stderr.

    Args:
        config: what `config_command` has printed, for messages.
    """
    login = shlex.join(reach.login_command())
    last = _last_line(said)
    if _CHANGED_KEY.search(said):
        return _describe_change(said, reach, config or {})
    if _UNKNOWN_KEY.search(said):
        return AuthFailed(
            f"The host key of `{reach.host}` (pool `{reach.pool}`) is not known here",
            why=_line_with(_UNKNOWN_KEY, said),
            fix=f"Compare the fingerprint that this shows, and answer yes: `{login}`",
        )
    if _REFUSED.search(said):
        return AuthFailed(
            f"Pool `{reach.pool}`: login needed on `{reach.host}`", why=_why_refused(said), fix=f"Run: `{login}`"
        )
    if _CONFIG.search(said):
        return Transient(
            f"Pool `{reach.pool}`: `ssh` does not take its configuration",
            why=last,
            fix="Put it right in pools.yaml (`ssh_options`) or in the file that it names.",
        )
    return Transient(
        f"Pool `{reach.pool}`: `{reach.host}` cannot be reached",
        why=last or "ssh ended without a word",
        fix=f"It is tried again by itself. By hand: `{login}`",
    )


def _describe_change(said: str, reach: Reach, config: Mapping[str, str]) -> HostKeyChanged:
    """What has changed, where it is known from, and what to type once the site has confirmed it; never before."""
    offending, shown = _OFFENDING.search(said), _SHOWN_KEY.search(said)
    known = f"The {offending['kind']} key at {offending['file']}:{offending['line']}" if offending else "A key"
    now = f", the host now shows {shown[0]}" if shown else ""
    compare = f"whether `{shown[0]}` is its new key" if shown else "whether its key is a new one"
    return HostKeyChanged(
        f"The host key of `{reach.host}` (pool `{reach.pool}`) has changed, and nothing is sent there",
        why=f"{known} is known here{now}: the machine was set up anew, or somebody is between",
        fix=f"Ask the site's admin {compare}. Only when they confirm it: "
        f"`{_forget_command(said, reach, config)}`, then `gangline pools login {reach.pool}`",
    )


def _why_refused(said: str) -> str:
    denied = _DENIED.findall(said)
    methods = set(denied[-1].split(",")) if denied else set()
    if methods & {"keyboard-interactive", "password"}:
        return "It asks for a password or a second factor"
    if any(method.startswith("gssapi") for method in methods):
        return "It accepts none of the keys here, and there is no valid Kerberos ticket (`kinit`)"
    if methods == {"publickey"}:
        return "It accepts none of the keys that are here and need no passphrase"
    return _line_with(_REFUSED, said)


def _forget_command(said: str, reach: Reach, config: Mapping[str, str]) -> str:
    name, port = config.get("hostkeyalias") or config.get("hostname", reach.host), config.get("port", "22")
    name = name if port == "22" else f"[{name}]:{port}"
    offending = _OFFENDING.search(said)
    file = ["-f", offending["file"]] if offending else []
    return shlex.join(["ssh-keygen", *file, "-R", name])


def _line_with(pattern: re.Pattern[str], said: str) -> str:
    """The first line that says so; jump hosts say more behind it."""
    return next((line.strip()[:500] for line in said.splitlines() if pattern.search(line)), _last_line(said))


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip(" @*\r")]
    return lines[-1][:500] if lines else ""


def _given(*options: str) -> list[str]:
    return [part for option in options for part in ("-o", option)]
