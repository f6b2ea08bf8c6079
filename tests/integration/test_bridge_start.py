"""The start of a bridge through whatever stands between: login shells of every kind, and an `ssh` that prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.agent.bundle import render_bundle
from gangline.backends.slurm.bootstrap import render_command
from gangline.backends.slurm.session import Session
from gangline.domain.errors import Transient
from gangline.domain.pool import SlurmPool

pytestmark = pytest.mark.integration
BUNDLE = render_bundle()
SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish") if shutil.which(name)]
SSH = """\
#!/bin/sh
case " $* " in *" -G "*) exit 0;; esac
for last; do :; done
{before}
{shell} -c "$last"
code=$?
{after}
exit $code
"""
JUNK = """cat <<'END'
  Welcome to Stampede3 ✓✓
Submitted batch job 519605
GANGLINE-BRIDGE 0123
{"id": 1, "ok": true, "bytes": 0}
{"id":1,"ok":true,"bytes":99}
END
printf 'no end of line: '"""


def stub_session(
    tmp_path: Path, *, shell: str = "sh", before: str = ":", after: str = ":", python: str = ""
) -> Session:
    stub = tmp_path / "bin/ssh"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(SSH.format(shell=shell, before=before, after=after))
    stub.chmod(0o755)
    environ = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    pool = SlurmPool(name="a", work=str(tmp_path / "work"), ssh="login", python=python or sys.executable)
    return Session(pool, tmp_path / "home", bundle=BUNDLE, environ=environ)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_starts_it(tmp_path: Path, shell: str) -> None:
    session = stub_session(tmp_path, shell=shell)
    try:
        assert session.run(["printf", "%s", "a 'b' \"c\" $d !e"]).out == "a 'b' \"c\" $d !e"
    finally:
        session.close()


def test_junk_before_and_after_is_not_taken_for_anything(tmp_path: Path) -> None:
    session = stub_session(tmp_path, before=JUNK, after=JUNK)
    try:
        for number in range(3):
            assert session.run(["echo", f"Submitted batch job {number}"]).out == f"Submitted batch job {number}\n"
        assert session.append("runs/r/control.jsonl", 0, b"x" * 100_000) == 100_000
        assert session.read([("r", "control.jsonl", 0, 200_000)]) == [b"x" * 100_000]
    finally:
        session.close()


def test_what_a_background_process_of_the_shell_prints_later_does_no_harm(tmp_path: Path) -> None:
    chatty = "(for i in 1 2 3 4 5 6 7 8 9 10; do echo 'Submitted batch job 1'; sleep 0.1; done) &"
    session = stub_session(tmp_path, before=chatty)
    try:
        for number in range(30):
            assert persistently(session, number) == f"{number}\n"
    finally:
        session.close()


def persistently(session: Session, number: int) -> str:
    while True:
        with suppress(Transient):  # it was printed into an answer, which is noticed
            return session.run(["sh", "-c", f"sleep 0.03; echo {number}"]).out
        session.retry()


def test_a_shell_that_prints_without_end_is_given_up(tmp_path: Path) -> None:
    session = stub_session(tmp_path, before="yes")
    with pytest.raises(Transient, match="prints without end"):
        session.hello()
    session.close()


def test_pythons_that_are_too_old_or_broken_are_passed_over(tmp_path: Path) -> None:
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name, text in (("python3.14", "exit 127"), ("python3.13", "echo broken >&2; exit 1"), ("python3.12", "exit 1")):
        (fakes / name).write_text(f"#!/bin/sh\n{text}\n")
        (fakes / name).chmod(0o755)
    (fakes / "python3.11").symlink_to(sys.executable)
    program = b"print('started', flush=True)"
    done = subprocess.run(
        ["sh", "-c", render_command("tok")],
        input=b"%d\n%s" % (len(program), program),
        capture_output=True,
        env={**os.environ, "PATH": f"{fakes}:/usr/bin:/bin"},
        check=False,
    )
    assert done.stdout == b"\nGANGLINE-BRIDGE tok\nstarted\n"


def test_where_no_python_will_do_those_that_are_there_are_named(tmp_path: Path) -> None:
    fakes = tmp_path / "bin"
    fakes.mkdir()
    (fakes / "old").write_text('#!/bin/sh\ncase "$*" in *version.split*) echo /opt/old 3.6.8;; *) exit 1;; esac\n')
    (fakes / "old").chmod(0o755)
    session = stub_session(tmp_path, python=str(fakes / "old"))
    with pytest.raises(Transient, match=r"no Python >= 3\.10 on login\. Found: /opt/old 3\.6\.8\. Name one"):
        session.hello()
    session.close()
