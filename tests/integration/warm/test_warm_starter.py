# ruff: noqa: E501 - a script of a rank is one line of a table
"""Where warm start gives way to exec start, and what happens when the helper or the agent dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gangline.agent.bundle import build
from gangline.agent.execstart import ExecStarter
from gangline.agent.inject import STACKS_SIGNAL, write_injected
from gangline.agent.warm import HelperPlan, WarmStarter

pytestmark = pytest.mark.integration

WAITING = (
    "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('done')\n"
)


def until(condition, *, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def has_said(rank, text):
    path = Path(rank.log_path)
    return path.exists() and text in path.read_text()


DRAWS = """
import json, os, random, secrets, tempfile, uuid, multiprocessing
print(json.dumps([random.random(), random.getrandbits(64), secrets.token_hex(), str(uuid.uuid4()), str(uuid.uuid1()), tempfile.mktemp(),
                  os.urandom(8).hex(), bytes(multiprocessing.current_process().authkey).hex(), os.getpid()]))
"""


def test_ranks_draw_numbers_of_their_own(bench):
    bench.write({"train.py": DRAWS})
    ranks = [bench.rank("train.py", number=number) for number in range(3)]
    starter = bench.open(ranks[0], preload=["random", "uuid", "tempfile", "secrets", "multiprocessing"])
    ended = bench.finish(starter, {starter.start(rank): rank for rank in ranks})
    assert starter.mode == "warm"
    drawn = [one.json for one in ended.values()]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == len(ranks)


def test_ranks_outlive_a_killed_helper_and_later_ones_start_by_exec(bench):
    bench.write({"train.py": WAITING})
    ranks = [bench.rank("train.py", number=number) for number in range(2)]
    starter = bench.open(ranks[0])
    (helper,) = starter.own_pids()
    first = starter.start(ranks[0])
    until(lambda: has_said(ranks[0], "up"))
    os.kill(helper, signal.SIGKILL)
    bench.wait(starter, lambda: not starter.exits() and starter.mode == "exec")
    assert "ended by signal 9" in starter.fallback_reason
    assert starter.own_pids() == frozenset()
    assert psutil.Process(first).ppid() == os.getpid()
    second = starter.start(ranks[1])
    bench.write({"go": ""})
    ended = bench.finish(starter, {first: ranks[0], second: ranks[1]})
    assert [(one.exit_code, one.text) for one in ended.values()] == [(0, "up\ndone\n")] * 2


def test_a_helper_killed_at_any_moment_leaves_no_rank_that_nobody_knows(bench):
    bench.write({"train.py": "import os\nopen(f'ran-{os.getpid()}', 'w').close()"})
    before = psutil.Process().children()
    for round_number in range(12):
        rank = bench.rank("train.py")
        starter = bench.open(rank)
        (helper,) = starter.own_pids()
        killer = subprocess.Popen(
            [sys.executable, "-c", f"import os, time; time.sleep({round_number * 0.0007}); os.kill({helper}, 9)"]
        )
        known = [starter.start(rank) for _ in range(8)]
        bench.finish(starter, dict.fromkeys(known, rank))
        killer.wait()
        ran = {int(path.name.removeprefix("ran-")) for path in bench.code.glob("ran-*")}
        assert ran <= set(known)
        for path in bench.code.glob("ran-*"):
            path.unlink()
        left = [child for child in psutil.Process().children() if child not in before]
        _, alive = psutil.wait_procs([child for child in left if child.pid not in {helper} | starter.own_pids()], 30)
        assert alive == []


def test_a_helper_killed_while_it_imports_costs_only_the_warmth(bench):
    bench.write({"train.py": "print('ran')", "slow.py": "open('begun', 'w').close()\nimport time\ntime.sleep(60)"})
    rank = bench.rank("train.py")
    write_injected(bench.launch)
    starter = WarmStarter(_plan(bench, rank, "+slow"), exec_starter=ExecStarter)
    until((bench.code / "begun").exists)
    assert not starter.ready()
    (helper,) = starter.own_pids()
    os.kill(helper, signal.SIGKILL)
    bench.wait(starter, starter.ready)
    ended = bench.finish(starter, {starter.start(rank): rank})
    starter.close()
    assert [one.text for one in ended.values()] == ["ran\n"]


def test_imports_that_hang_end_in_exec_start(bench, monkeypatch):
    monkeypatch.setattr("gangline.agent.warm._IMPORT_TIMEOUT_S", 1)
    bench.write({"train.py": "print('ran')", "slow.py": "import time\ntime.sleep(600)"})
    rank = bench.rank("train.py")
    starter = bench.open(rank, preload=["slow"])
    assert "imports took longer than 1 s" in starter.fallback_reason
    ended = bench.finish(starter, {starter.start(rank): rank})
    assert [one.text for one in ended.values()] == ["ran\n"]


def test_a_helper_that_stands_still_is_given_up(bench, monkeypatch):
    monkeypatch.setattr("gangline.agent.warm._ANSWER_TIMEOUT_S", 0.3)
    bench.write({"train.py": "print('ran')"})
    rank = bench.rank("train.py")
    starter = bench.open(rank)
    (helper,) = starter.own_pids()
    os.kill(helper, signal.SIGSTOP)
    ended = bench.finish(starter, {starter.start(rank): rank})
    assert "did not answer within" in starter.fallback_reason
    assert [one.text for one in ended.values()] == ["ran\n"]
    assert not psutil.pid_exists(helper)


def _plan(bench, rank, *modules):
    return HelperPlan(
        argv=(rank.python, rank.entry),
        cwd=rank.cwd,
        env=rank.env,
        path_start=str(bench.code),
        modules=modules,
        folder=bench.launch,
    )


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import nowhere_at_all", "importing odd failed (ModuleNotFoundError: No module named 'nowhere_at_all')"),
        ("def f(:", "importing odd failed (SyntaxError"),
        ("import sys\nsys.exit(3)", "importing odd failed (SystemExit: 3)"),
        ("import os\nos._exit(9)", "its helper ended with exit code 9"),
        ("import os\nprint('last words', flush=True)\nos.abort()", "its helper was ended by signal 6 (last words)"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "an import started 1 thread(s)",
        ),
        ("import socket\ns = socket.socketpair()", "an import left socket:"),
        ("f = open('held', 'w')", "held open"),
        (
            "import sys, types\ntorch = sys.modules['torch'] = types.ModuleType('torch')\ntorch.cuda = types.SimpleNamespace(is_initialized=lambda: True)",
            "initialised a device (cuda)",
        ),
    ],
)
def test_an_import_that_spoils_a_fork_means_exec_start(bench, module, reason):
    bench.write({"train.py": "print('ran')", "odd.py": module})
    rank = bench.rank("train.py")
    starter = bench.open(rank, start="auto", preload=["odd"])
    assert reason in starter.fallback_reason
    assert starter.fallback_reason.startswith("Ranks start by exec, not warm: ")
    ended = bench.finish(starter, {starter.start(rank): rank})
    assert [(one.exit_code, one.text) for one in ended.values()] == [(0, "ran\n")]


def test_a_local_file_that_stands_in_for_a_library_module_means_exec_start(bench):
    bench.write({"train.py": "import textwrap\nprint(textwrap.mine)", "textwrap.py": "mine = 1"})
    rank = bench.rank("train.py")
    write_injected(bench.launch)
    starter = WarmStarter(_plan(bench, rank, "optparse"), exec_starter=ExecStarter)
    bench.wait(starter, starter.ready)
    assert "textwrap.py stands in for a module" in starter.fallback_reason
    ended = bench.finish(starter, {starter.start(rank): rank})
    starter.close()
    assert [one.text for one in ended.values()] == ["1\n"]


def test_what_imports_print_is_in_every_ranks_log_as_if_it_had_imported_itself(bench):
    module = "import sys, os, warnings\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\nos.environ['SET_BY_IMPORT'] = '1'\nwarnings.warn('old')"
    bench.write(
        {"train.py": "import loud, os\nprint(os.environ['SET_BY_IMPORT'], os.environ['RANK'])", "loud.py": module}
    )
    ranks = [bench.rank("train.py", number=number) for number in range(2)]
    starter = bench.open(ranks[0], preload=["loud"])
    pids = {starter.start(rank): rank for rank in ranks}
    ended = bench.finish(starter, pids)
    assert starter.mode == "warm"
    plain = [bench.run("plain", bench.rank("train.py", number=number)).text for number in range(2)]
    assert [ended[pid].text for pid in pids] == plain


def test_a_preloaded_local_module_is_the_one_that_the_script_gets(bench):
    bench.write(
        {
            "train.py": "import lib\nprint(lib.pid != __import__('os').getpid(), lib.__file__)",
            "lib.py": "import os\npid = os.getpid()",
        }
    )
    ended = bench.run("warm", bench.rank("train.py"), preload=["lib"])
    assert ended.text == f"True {bench.code}/lib.py\n"


def test_a_variable_that_an_interpreter_reads_at_its_start_gets_a_helper_of_its_own(bench):
    bench.write({"train.py": "print(hash('a'))"})
    starter = bench.open(bench.rank("train.py", env={"PYTHONHASHSEED": "1"}))
    said, modes = [], []
    for seed in ("1", "2", "2", "3", "4"):
        rank = bench.rank("train.py", env={"PYTHONHASHSEED": seed})
        pid = starter.start(rank)
        said.append(bench.finish(starter, {pid: rank})[pid].text)
        modes.append(starter.mode)
        assert said[-1] == bench.run("plain", rank).text.removeprefix(said[-1])
    assert modes == ["warm", "warm", "warm", "warm", "exec"]
    assert "differ in what an interpreter reads at its start" in starter.fallback_reason


def test_an_interpreter_that_ignores_what_is_injected_never_runs_the_script_as_a_helper(bench):
    bench.write(
        {"train.py": "open('runs', 'a').write('x')", "bin/python": f'#!/bin/sh\nexec {sys.executable} -E "$@"\n'}
    )
    (bench.code / "bin/python").chmod(0o755)
    rank = replace(bench.rank("train.py"), python=str(bench.code / "bin/python"))
    starter = bench.open(rank)
    assert "does not load what PYTHONPATH has for it" in starter.fallback_reason
    ended = bench.finish(starter, {starter.start(rank): rank})
    assert [one.exit_code for one in ended.values()] == [0]
    assert (bench.code / "runs").read_text() == "x"


def test_ps_shows_ranks_as_the_script_and_the_helper_as_the_helper(bench):
    bench.write({"train_by_name.py": WAITING})
    rank = bench.rank("train_by_name.py", args=["--lr", "1"])
    starter = bench.open(rank)
    pid = starter.start(rank)
    until(lambda: has_said(rank, "up"))
    assert psutil.Process(pid).cmdline() == [rank.python, "train_by_name.py", "--lr", "1"]
    (helper,) = starter.own_pids()
    assert psutil.Process(helper).cmdline()[0] == "gangline warm helper"
    bench.write({"go": ""})
    bench.finish(starter, {pid: rank})


@pytest.mark.parametrize("mode", ["exec", "warm"])
def test_stacks_are_dumped_on_the_signal(bench, mode):
    bench.write({"train.py": WAITING})
    rank = bench.rank("train.py")
    starter = bench.open(rank, start=mode)
    pid = starter.start(rank)
    until(lambda: has_said(rank, "up"))
    os.kill(pid, STACKS_SIGNAL)
    until(lambda: "train.py" in Path(rank.stacks_path).read_text())
    os.kill(pid, signal.SIGTERM)
    assert bench.finish(starter, {pid: rank})[pid].signal == signal.SIGTERM


AGENT = """
import json, os, sys
from pathlib import Path
from gangline.agent.choose import StarterPlan, open_starter
from gangline.agent.execstart import ExecStarter
from gangline.agent.starter import RankStart
folder, python, wait = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "wait"
env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
common = dict(entry_kind="script", entry="train.py", args=(), python=python, cwd=str(folder), env=env)
starter = open_starter(StarterPlan(start="warm", preload=(), folder=folder, **common), exec_starter=ExecStarter)
while not starter.ready():
    pass
rank = RankStart(rank=0, local_rank=0, log_path=str(folder / "log"), error_path=str(folder / "error"), stacks_path=str(folder / "stacks"), **common)
pid = starter.start(rank)
print(json.dumps([starter.mode, pid, *starter.own_pids()]), flush=True)
while wait or not starter.exits():
    pass
starter.close()
"""


def test_ranks_and_helper_end_with_an_agent_that_is_killed(tmp_path):
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)")
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path), sys.executable, "wait"], stdout=subprocess.PIPE
    )
    mode, *pids = json.loads(agent.stdout.readline())
    assert mode == "warm"
    agent.kill()
    agent.communicate()
    until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids))


def test_a_rank_finds_gangline_in_the_bundle_where_it_is_not_installed(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    bundle = build(tmp_path)
    (tmp_path / "train.py").write_text(
        "import gangline.rundir, sys\nprint(gangline.__file__, gangline.rundir.__file__, sys.path[-1])"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", AGENT, str(tmp_path), python, "end"],
        env={**env, "PYTHONPATH": str(bundle)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)[0] == "warm", done.stderr
    first, inner, last = map(Path, (tmp_path / "log").read_text().split())
    assert (first, inner.parents[2], last.name) == (last / "gangline" / "__init__.py", bundle, "offered")
