# ruff: noqa: E501 - a script of a rank is one line of a table
"""The exception that ends a rank is described next to its log, in both ways to start it."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

BOTH = pytest.mark.parametrize("mode", ["exec", "warm"])

TELLING = [
    ("raise ValueError('wörds')", "ValueError", "wörds"),
    ("class Mine(Exception): pass\nraise Mine(1, 2)", "Mine", "(1, 2)"),
    ("import json\njson.loads('')", "json.decoder.JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
    *[("raise ExceptionGroup('several', [ValueError(1), KeyError(2)])", "ExceptionGroup", "several (2 sub-exceptions)")]
    * (sys.version_info >= (3, 11)),
    ("import sys\nsys.excepthook = lambda *a: None\n1/0", "ZeroDivisionError", "division by zero"),
    ("import sys\nsys.setrecursionlimit(60)\ndef f(): f()\nf()", "RecursionError", "maximum recursion depth exceeded"),
    (
        "class Odd(Exception):\n    def __str__(self): raise KeyError\nraise Odd",
        "Odd",
        "<its message cannot be shown: KeyError>",
    ),
    ("raise MemoryError", "MemoryError", ""),
    ("import sys\nsys.exit('no data')", "SystemExit", "no data"),
    ("raise AssertionError('x' * 9_000)", "AssertionError", "x" * 4000),
    (
        "import atexit, os\natexit.register(os.chdir, '/')\nraise OSError(28, 'No space left on device')",
        "OSError",
        "[Errno 28] No space left on device",
    ),
]


@BOTH
@pytest.mark.parametrize(("script", "kind", "message"), TELLING, ids=[kind for _, kind, _ in TELLING])
def test_what_ended_the_rank_is_described(bench, mode, script, kind, message):
    bench.write({"train.py": script})
    error = bench.run(mode, bench.rank("train.py")).error
    assert (error["type"], error["message"]) == (kind, message)
    assert kind.rpartition(".")[2] in error["traceback"]
    assert len(error["traceback"]) <= 16_000
    assert error["time"] > 0


@BOTH
@pytest.mark.parametrize(
    ("script", "code", "place"),
    [
        ("import threading", None, None),
        ("import sys\nsys.exit()", 0, None),
        ("import sys\ndef stop():\n    sys.exit(256 + 7)\nstop()", 7, "line 3, in stop\n    sys.exit(256 + 7)\n"),
        ("raise SystemExit(3)", None, None),
        ("raise SystemExit('why')", None, None),
        ("import atexit, os\natexit.register(os._exit, 5)\nimport sys\nsys.exit(2)", 2, "line 4, in <module>"),
    ],
)
def test_a_rank_notes_that_it_leaves(bench, mode, script, code, place):
    bench.write({"train.py": script})
    rank = bench.rank("train.py")
    assert bench.run(mode, rank).error is None
    left = json.loads(Path(rank.error_path.replace(".error.", ".left.")).read_text())
    assert left["code"] == code
    assert left["time"] > 0
    assert place in left["traceback"] if place else left["traceback"] == ""


@BOTH
@pytest.mark.parametrize("script", ["1 / 0", "import sys\nsys.exit('no data')", "import os\nos._exit(0)"])
def test_a_rank_that_raised_or_went_without_a_word_has_not_left(bench, mode, script):
    bench.write({"train.py": script})
    rank = bench.rank("train.py")
    bench.run(mode, rank)
    assert not Path(rank.error_path.replace(".error.", ".left.")).exists()


@BOTH
def test_the_traceback_is_the_one_that_is_printed(bench, mode):
    bench.write(
        {
            "train.py": "def f():\n    return {}['a']\ntry:\n    f()\nexcept KeyError as e:\n    raise RuntimeError('b') from e"
        }
    )
    ended = bench.run(mode, bench.rank("train.py"))
    assert ended.error["traceback"] == ended.text


@BOTH
@pytest.mark.parametrize(
    "script",
    [
        "",
        "import sys\nsys.exit(3)",
        "import sys\ntry:\n    sys.exit('caught')\nexcept SystemExit:\n    pass\nimport os\nos._exit(0)",
        "import os\nos._exit(1)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()",
        "import os\npid = os.fork()\nif not pid:\n    raise ValueError('of a child')\nos.wait()",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise ValueError(1)'])",
        "import multiprocessing as m\np = m.get_context('fork').Process(target=int, args=('x',))\np.start()\np.join()",
        "import threading\nt = threading.Thread(target=int, args=('x',))\nt.start()\nt.join()",
    ],
)
def test_nothing_is_described_where_no_exception_ended_the_rank(bench, mode, script):
    bench.write({"train.py": script})
    assert bench.run(mode, bench.rank("train.py")).error is None


def test_the_python_under_a_shell_describes_its_end_and_hands_on_a_clean_environment(bench):
    script = "import os, subprocess, sys\nprint(os.environ.get('PYTHONPATH'), [n for n in os.environ if n.startswith('GANGLINE_I')], sys.path[1:])\nraise ValueError('below a shell')"
    bench.write({"train.py": script})
    rank = bench.rank("train.py")
    plain = bench.run("plain", rank).text
    command = replace(
        bench.rank("train.py"), entry_kind="command", entry="bash", args=("-c", f"{rank.python} train.py; exit 5")
    )
    ended = bench.run("exec", command)
    assert (ended.exit_code, ended.text) == (5, plain)
    assert ended.error["message"] == "below a shell"


@BOTH
def test_the_environments_own_sitecustomize_runs(bench, mode):
    bench.write(
        {
            "lib/sitecustomize.py": "import sys\nsys.marked = __file__",
            "train.py": "import sys, sitecustomize\nprint(sys.marked, sitecustomize.__file__)",
        }
    )
    rank = bench.rank("train.py", env={"PYTHONPATH": "lib"})
    assert bench.run(mode, rank).text == bench.run("plain", rank).text.splitlines(keepends=True)[0]


@BOTH
def test_an_error_that_cannot_be_written_is_said_in_the_log_and_changes_nothing(bench, mode):
    bench.write({"train.py": "1/0"})
    rank = replace(bench.rank("train.py"), error_path="/nowhere/at/all.json")
    ended = bench.run(mode, rank)
    assert ended.exit_code == 1
    assert "gangline: could not describe the error in /nowhere/at/all.json" in ended.text


@BOTH
@pytest.mark.torch
def test_an_error_through_torchs_record_is_the_users_own(bench, mode):
    script = "from torch.distributed.elastic.multiprocessing.errors import record\n\n@record\ndef main():\n    raise ValueError('inside')\n\nmain()\n"
    bench.write({"train.py": script})
    ended = bench.run(mode, bench.rank("train.py", env={"TORCHELASTIC_ERROR_FILE": str(bench.logs / "torch.json")}))
    assert (ended.error["type"], ended.error["message"]) == ("ValueError", "inside")
    assert json.loads(Path(bench.logs / "torch.json").read_text())["message"]["message"] == "ValueError: inside"


@BOTH
@pytest.mark.parametrize(
    "before",
    [
        "import atexit, signal\natexit.register(signal.pause)",
        "import signal, threading\nthreading.Thread(target=threading.Event().wait).start()",
        "import signal, sys\nsys.excepthook = lambda *error: signal.pause()",
    ],
    ids=["atexit", "thread", "hook"],
)
def test_an_exception_is_described_before_what_still_keeps_the_rank(bench, mode, before):
    bench.write({"train.py": f"{before}\nraise ValueError('the real cause')"})
    rank = bench.rank("train.py")
    starter = bench.open(rank, start=mode)
    pid = starter.start(rank)
    bench.wait(starter, lambda: Path(rank.error_path).exists())
    os.kill(pid, signal.SIGKILL)
    ended = bench.finish(starter, {pid: rank})[pid]
    assert (ended.signal, ended.error["message"]) == (signal.SIGKILL, "the real cause")


@BOTH
def test_an_error_that_an_extension_prints_ends_nothing(bench, mode):
    script = (
        "import ctypes\ndef fail():\n    ctypes.pythonapi.PyErr_SetString(ctypes.py_object(ValueError), b'printed')\n"
        "    ctypes.pythonapi.PyErr_Print()\ntry:\n    fail()\nexcept ValueError:\n    pass\n"
        "import os\nos._exit(5)"
    )
    bench.write({"train.py": script})
    assert bench.run(mode, bench.rank("train.py")).error is None


@BOTH
def test_what_an_exception_holds_goes_when_it_would(bench, mode):
    script = "import sys\nclass Held:\n    def __del__(self): print('gone', sys is not None, flush=True)\ndef f():\n    held = Held()\n    raise ValueError\nf()"
    bench.write({"train.py": script})
    rank = bench.rank("train.py")
    plain = bench.run("plain", rank).text
    assert "gone" in plain
    assert bench.run(mode, bench.rank("train.py")).text == plain
