from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.backends.slurm.ssh import classify, make_socket_folder, reach_of, render_environ
from gangline.domain.errors import AuthFailed, HostKeyChanged, Transient
from gangline.domain.pool import SlurmPool

POOL = SlurmPool(name="a100", work="/work", ssh="login", ssh_options=("-F", "/my config"))
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
The fingerprint for the ED25519 key sent by the remote host is
SHA256:5Xq2PhnCwIpnO6Nu8QH0R2xYsvj8s8jTJXhKk2lqNbE.
Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /home/me/.ssh/known_hosts:3
Host key for [login.site]:2222 has changed and you have requested strict checking.
Host key verification failed.
"""


@pytest.fixture
def home() -> Path:
    return Path("/home/me/.gangline")


def reach(home: Path, pool: SlurmPool = POOL):
    found = reach_of(pool, home)
    assert found is not None
    return found


def test_the_bridge_asks_nobody_and_takes_the_users_configuration(home: Path) -> None:
    command = reach(home).bridge_command("exec sh -c x")
    options = [command[index + 1] for index, word in enumerate(command) if word == "-o"]
    assert {"BatchMode=yes", "ControlMaster=auto", "ControlPersist=no", "ServerAliveInterval=10"} <= {*options}
    assert "RequestTTY=no" in options
    assert not [option for option in options if option.startswith("StrictHostKeyChecking")]
    assert command[0] == "ssh"
    assert command[-4:] == ["-F", "/my config", "login", "exec sh -c x"]
    assert command.index("-o") < command.index("-F"), "of two values ssh takes the first"


def test_the_login_is_at_the_same_socket_and_stays(home: Path) -> None:
    found = reach(home)
    for command in (found.bridge_command("x"), found.login_command(), found.shell_command(), found.check_command()):
        assert f"ControlPath={found.socket}" in command
    login = found.login_command()
    assert "ControlMaster=yes" in login
    assert "ControlPersist=12h" in login
    assert "BatchMode=yes" not in login
    assert login[-2:] == ["-fN", "login"]


def test_each_pool_and_each_way_has_a_socket_of_its_own(home: Path) -> None:
    pools = (POOL, replace(POOL, name="b"), replace(POOL, ssh="other"), replace(POOL, ssh_options=()))
    assert len({reach(home, pool).socket for pool in pools}) == 4
    assert reach_of(replace(POOL, ssh=None), home) is None


def test_the_sockets_path_is_short_enough(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reach(home).socket.parent == home / "ssh"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path)[:40])
    for long in (Path("/x" * 60), Path("/h/%d")):
        found = reach(long).socket
        assert len(str(found)) <= 90
        assert str(os.getuid()) in found.parent.name
        assert found == reach(long).socket
    assert reach(Path("/x" * 60)).socket.parent != reach(Path("/y" * 60)).socket.parent


def test_the_sockets_folder_is_private(tmp_path: Path) -> None:
    found = reach(tmp_path)
    found.socket.parent.mkdir(mode=0o755)
    make_socket_folder(found)
    assert stat.S_IMODE(found.socket.parent.stat().st_mode) == 0o700
    found.socket.parent.rmdir()
    (tmp_path / "elsewhere").mkdir()
    found.socket.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Transient, match="cannot be used"):
        make_socket_folder(found)


def test_nobody_is_asked_in_a_window() -> None:
    environ = render_environ({"DISPLAY": ":0", "SSH_ASKPASS": "/x", "SSH_AUTH_SOCK": "/s", "HOME": "/h"})
    assert environ == {"SSH_AUTH_SOCK": "/s", "HOME": "/h", "SSH_ASKPASS_REQUIRE": "never"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("me@login: Permission denied (publickey).", "none of the keys"),
        ("me@login: Permission denied (publickey,keyboard-interactive).", "second factor"),
        ("me@login: Permission denied (publickey,password).", "password"),
        ("me@login: Permission denied (publickey,gssapi-with-mic).", "kinit"),
        ("sign_and_send_pubkey: signing failed: agent refused operation\nme@x: Permission denied (publickey).", "keys"),
        ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures", "Too many"),
        ("This account is currently not available.", "not available"),
        ("me@jump: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535", "keys"),
    ],
)
def test_where_a_person_has_to_log_in_the_command_is_told(home: Path, said: str, words: str) -> None:
    error = classify(said, reach(home))
    assert isinstance(error, AuthFailed)
    assert words in error.why
    assert error.fix == (
        f"Run: `ssh -o ControlMaster=yes -o ControlPath={reach(home).socket} -o ControlPersist=12h "
        "-o ClearAllForwardings=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=2 -F '/my config' -fN login`"
    )


@pytest.mark.parametrize(
    "said",
    [
        "Host key verification failed.",
        "No ED25519 host key is known for login and you have requested strict checking.\nHost key verification failed.",
    ],
)
def test_an_unknown_host_key_is_shown_to_a_person(home: Path, said: str) -> None:
    error = classify(said, reach(home))
    assert isinstance(error, AuthFailed)
    assert "not known" in error.what
    assert "-fN login`" in error.fix


def test_a_changed_host_key_is_never_waved_through(home: Path) -> None:
    error = classify(CHANGED, reach(home), {"hostname": "login.site", "port": "2222"})
    assert isinstance(error, HostKeyChanged)
    assert "has changed, and nothing is sent there" in error.what
    key = "SHA256:5Xq2PhnCwIpnO6Nu8QH0R2xYsvj8s8jTJXhKk2lqNbE"
    assert f"The ED25519 key at /home/me/.ssh/known_hosts:3 is known here, the host now shows {key}: " in error.why
    asked, _, typed = error.fix.partition("Only when they confirm it: ")
    assert asked == f"Ask the site's admin whether `{key}` is its new key. "
    assert typed == "`ssh-keygen -f /home/me/.ssh/known_hosts -R '[login.site]:2222'`, then `gangline pools login a100`"


def test_who_takes_any_key_is_asked_all_the_same_when_logging_in(home: Path) -> None:
    assert "StrictHostKeyChecking=ask" not in reach(home).login_command()
    assert "StrictHostKeyChecking=ask" in reach(home).login_command(asks=True)


@pytest.mark.parametrize(
    "said",
    [
        "ssh: connect to host login port 22: Connection refused",
        "ssh: connect to host login port 22: Connection timed out",
        "ssh: Could not resolve hostname login: Name or service not known",
        "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.1 port 22",
        "Timeout, server login not responding.",
        "client_loop: send disconnect: Broken pipe",
        "something new",
        "",
    ],
)
def test_everything_else_is_tried_again(home: Path, said: str) -> None:
    error = classify(said, reach(home))
    assert isinstance(error, Transient)
    assert error.why == (said.splitlines()[-1] if said else "ssh ended without a word")


def test_a_configuration_that_ssh_does_not_take_is_named(home: Path) -> None:
    error = classify("Can't open user config file /my config: No such file or directory", reach(home))
    assert isinstance(error, Transient)
    assert "configuration" in error.what
    assert "ssh_options" in error.fix
