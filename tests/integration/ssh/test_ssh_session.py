"""Sessions over a real sshd: one connection, checked host keys, nobody is asked, and what breaks is opened again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.sshd import Bastion, wait_for

from gangline.backends.slurm.session import Session
from gangline.domain.errors import AuthFailed, Transient

pytestmark = [pytest.mark.integration, pytest.mark.sshd]
Connect = Callable[..., Session]


def ssh_processes(session: Session) -> list[psutil.Process]:
    assert session.reach is not None
    mark = str(session.reach.socket)
    return [process for process in psutil.process_iter() if any(mark in word for word in words_of(process))]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_there_is_one_connection_whose_socket_others_use_and_nothing_stays(connect: Connect) -> None:
    session = connect()
    assert session.hello().clock_offset_s < 5
    assert session.run(["echo", "hi"]).out == "hi\n"
    assert session.reach is not None
    assert session.reach.socket.is_socket()
    assert session.reach.socket.parent.stat().st_mode & 0o777 == 0o700
    assert subprocess.run(session.reach.check_command(), capture_output=True, check=False).returncode == 0
    riding = subprocess.run([*session.reach.shell_command(), "echo $SSH_CONNECTION"], capture_output=True, check=True)
    over = session.run(["sh", "-c", "echo $SSH_CONNECTION"]).out
    assert riding.stdout.decode() == over, "it has opened a connection of its own"
    session.close()
    wait_for(lambda: not ssh_processes(session), "an ssh is left")


def test_a_key_that_is_not_accepted_asks_for_a_login_with_the_exact_command(connect: Connect, bastion: Bastion) -> None:
    authorized = bastion.folder / "key.pub"
    right = authorized.read_text()
    authorized.write_text((bastion.folder / "other_key.pub").read_text())
    session = connect()
    with pytest.raises(AuthFailed, match="login needed on `bastion`") as caught:
        session.hello()
    assert session.reach is not None
    config = bastion.folder / "ssh_config"
    assert caught.value.fix == (
        f"Run: `ssh -o ControlMaster=yes -o ControlPath={session.reach.socket} -o ControlPersist=12h "
        f"-o ClearAllForwardings=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=2 -F {config} -fN bastion`"
    )
    authorized.write_text(right)
    with pytest.raises(AuthFailed):  # it is not tried again for a while
        session.hello()
    command = caught.value.fix.removeprefix("Run: `").removesuffix("`")
    try:  # a person logs in, with another key than those of the background
        subprocess.run(["sh", "-c", command], check=True, timeout=60, stdin=subprocess.DEVNULL)
        authorized.write_text("")
        assert session.run(["echo", "hi"]).out == "hi\n"
        session.close()
        assert subprocess.run(session.reach.check_command(), capture_output=True, check=False).returncode == 0
    finally:
        subprocess.run([*session.reach.check_command()[:-3], "-O", "exit", "bastion"], capture_output=True, check=False)
    wait_for(lambda: not ssh_processes(session), "the shared connection stays")


def test_a_jump_host_that_lets_nobody_in_is_no_reason_to_wait_and_ends_with_the_connection(
    connect: Connect, bastion: Bastion
) -> None:
    session = connect(host="inner")
    assert session.run(["sh", "-c", "echo $SSH_CONNECTION"]).out.count("127.0.0.1") == 2
    jumps = [
        process for process in psutil.process_iter() if {"-W", f"[127.0.0.1]:{bastion.port}"} <= {*words_of(process)}
    ]
    assert len(jumps) == 1
    session.close()
    wait_for(
        lambda: not jumps[0].is_running() or jumps[0].status() == psutil.STATUS_ZOMBIE, "the way to the jump host stays"
    )
    bastion.known_hosts.write_text("")
    with pytest.raises(AuthFailed, match="host key"):  # of the jump host, for which ssh would ask at a terminal
        connect(host="inner").hello()


def test_an_unknown_or_changed_host_key_is_not_accepted(connect: Connect, bastion: Bastion) -> None:
    kind, other = (bastion.folder / "other_key.pub").read_text().split()[:2]
    for known, words in (("", "not known"), (f"[127.0.0.1]:{bastion.port} {kind} {other}\n", "has changed")):
        bastion.known_hosts.write_text(known)
        for options in ((), ("-o", "StrictHostKeyChecking=no")):
            session = connect(*options)
            if not known and options:  # whom the user would take unseen is noted
                assert session.run(["echo", "hi"]).out == "hi\n"
                assert str(bastion.port) in bastion.known_hosts.read_text()
                session.close()
                continue
            with pytest.raises(AuthFailed, match=words):
                session.hello()
            assert bastion.known_hosts.read_text() == known


def test_a_bastion_that_restarts_is_found_again(connect: Connect, bastion: Bastion) -> None:
    session = connect()
    session.hello()
    bastion.stop()
    with pytest.raises(Transient):
        session.run(["sleep", "60"])
    with pytest.raises(Transient, match="cannot be reached"):
        session.hello()
    bastion.start()
    wait_for(lambda: answers(session), "it is not found again")
    assert len(ssh_processes(session)) == 1


def test_nothing_is_left_of_a_server_that_was_killed(connect: Connect, bastion: Bastion, tmp_path: Path) -> None:
    session = connect()  # for its socket's name alone
    program = (
        "import sys, time; from pathlib import Path; from gangline.backends.slurm.session import Session\n"
        "from gangline.domain.pool import SlurmPool\n"
        "home, work, config, python = sys.argv[1:]\n"
        "pool = SlurmPool(name='a', work=work, ssh='bastion', ssh_options=('-F', config), python=python)\n"
        "Session(pool, Path(home)).run(['sleep', '600'], timeout_s=600)\n"
    )
    config = str(bastion.folder / "ssh_config")
    words = [str(tmp_path / "home"), session.pool.work, config, sys.executable]
    server = subprocess.Popen([sys.executable, "-c", program, *words])
    try:
        wait_for(lambda: any(words_of(one)[1:] == ["600"] for one in below(bastion)), "it does not run")
        assert ssh_processes(session)
        far = below(bastion)
    finally:
        server.kill()
        server.wait()
    wait_for(lambda: not ssh_processes(session), "its ssh is left")
    wait_for(lambda: not any(one.is_running() for one in far), "its bridge, or what that ran, is left")


def below(bastion: Bastion) -> list[psutil.Process]:
    assert bastion.server is not None
    return psutil.Process(bastion.server.pid).children(recursive=True)


def test_a_connection_that_swallows_everything_is_noticed(connect: Connect, bastion: Bastion) -> None:
    session = connect(ping_every_s=0.3, ping_patience_s=4.0)
    session.hello()
    bastion.pause()
    with pytest.raises(Transient, match="lost"):
        session.run(["echo", "hi"], timeout_s=600)
    wait_for(lambda: not ssh_processes(session), "the dead ssh is left")


@pytest.mark.parametrize("setting", ["Banner", "ForceCommand"])
def test_what_a_site_prints_is_not_taken_for_an_answer(connect: Connect, bastion: Bastion, setting: str) -> None:
    motd = bastion.folder / "motd"
    motd.write_text('Welcome to Stampede3!\nSubmitted batch job 519605\n{"id": 1, "ok": true}\n')
    noisy = bastion.folder / "noisy"
    inner = '$SHELL -c "$SSH_ORIGINAL_COMMAND"'
    noisy.write_text(f'#!/bin/sh\ncat {motd}\nprintf "no line end "\n{inner}\ncode=$?\ncat {motd}\nexit $code\n')
    noisy.chmod(0o755)
    bastion.stop()
    bastion.settings[setting] = str(motd if setting == "Banner" else noisy)
    bastion.start()
    session = connect()
    assert session.run(["echo", "Submitted batch job 7"]).out == "Submitted batch job 7\n"
    began = time.monotonic()
    session.close()
    assert time.monotonic() - began < 30


def test_a_login_that_starts_nothing_says_what_it_said(connect: Connect, bastion: Bastion) -> None:
    refusing = bastion.folder / "refusing"
    refusing.write_text("#!/bin/sh\necho 'This system is down for maintenance.' >&2\nexit 1\n")
    refusing.chmod(0o755)
    bastion.stop()
    bastion.settings["ForceCommand"] = str(refusing)
    bastion.start()
    with pytest.raises(Transient, match=r"ended with 1 .* down for maintenance"):
        connect().hello()


def answers(session: Session) -> bool:
    session.retry()
    try:
        return session.run(["echo", "hi"]).rc == 0
    except Transient:
        return False
