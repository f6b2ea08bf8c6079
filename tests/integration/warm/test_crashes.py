# ruff: noqa: E501 - a script of a rank is one line of a table
"""A rank that crashes in compiled code names the line of its script, in both ways to start it; who wants it else has it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from gangline.agent.crashes import find_crash
from gangline.domain.traces import find_place

pytestmark = pytest.mark.integration

BOTH = pytest.mark.parametrize("mode", ["exec", "warm"])
SEGV = "import ctypes\ndef step():\n    ctypes.string_at(0)\nstep()\n"
NUMPY = "import numpy as np\na = np.lib.stride_tricks.as_strided(np.zeros(1), (1 << 40,), (8,))\na.sum()\n"
TORCH = "import torch, mmap\nopen('x', 'wb').write(b'1' * 65536)\nf = open('x', 'r+b')\nt = torch.frombuffer(mmap.mmap(f.fileno(), 65536), dtype=torch.uint8)\nf.truncate(0)\nt.sum()\n"
IN_THREAD = "import ctypes, threading\ndef work():\n    ctypes.string_at(0)\nt = threading.Thread(target=work)\nt.start()\nt.join()\n"
CRASHES = [
    (SEGV, signal.SIGSEGV, "train.py:3"),
    (NUMPY, signal.SIGSEGV, "train.py:3"),
    (TORCH, signal.SIGBUS, "train.py:6"),
    ("import os\n\nos.abort()\n", signal.SIGABRT, "train.py:3"),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGFPE)\n", signal.SIGFPE, "train.py:2"),
    (IN_THREAD, signal.SIGSEGV, "train.py:3"),
]


def place_of(text: str, number: int) -> str:
    return find_place(find_crash(text, number, read_line=lambda _file, _line: ""))


@BOTH
@pytest.mark.parametrize(
    ("script", "number", "place"), CRASHES, ids=["segv", "numpy", "torch", "abort", "fpe", "in-thread"]
)
def test_the_line_is_in_the_file_of_stacks_and_the_log_as_ever(bench, mode, script, number, place):
    bench.write({"train.py": script})
    start = bench.rank("train.py")
    ended = bench.run(mode, start)
    assert (ended.exit_code, ended.signal, ended.log) == (None, number, b"")
    assert place_of(Path(start.stacks_path).read_text(), number) == place


@BOTH
@pytest.mark.parametrize(
    "first",
    ["import faulthandler; faulthandler.enable()", "import sys, faulthandler; faulthandler.enable(sys.stdout)"],
)
def test_a_script_that_turns_it_on_has_it_where_it_wants(bench, mode, first):
    bench.write({"train.py": f"{first}\n{SEGV}"})
    start = bench.rank("train.py")
    ended = bench.run(mode, start)
    assert (ended.signal, place_of(ended.text, 11)) == (11, "train.py:4")
    assert "Fatal" not in Path(start.stacks_path).read_text()


@BOTH
@pytest.mark.parametrize(("value", "in_log"), [("1", True), ("", False)])
def test_the_variable_of_python_decides(bench, mode, value, in_log):
    bench.write({"train.py": SEGV})
    start = bench.rank("train.py", env={"PYTHONFAULTHANDLER": value})
    ended = bench.run(mode, start)
    assert (ended.signal, "Fatal" in ended.text) == (11, in_log)
    assert "Fatal" not in Path(start.stacks_path).read_text()


@BOTH
def test_a_script_that_turns_it_off_or_handles_the_signal_itself_has_its_way(bench, mode):
    bench.write({"train.py": f"import faulthandler; faulthandler.disable()\n{SEGV}"})
    start = bench.rank("train.py")
    assert bench.run(mode, start).signal == 11
    assert "Fatal" not in Path(start.stacks_path).read_text()
    own = "import os, signal, sys\nassert signal.getsignal(signal.SIGSEGV) is signal.SIG_DFL\nsignal.signal(signal.SIGSEGV, lambda *_: os._exit(7))\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    bench.write({"train.py": own})
    assert bench.run(mode, bench.rank("train.py")).exit_code == 7


@BOTH
def test_programs_that_a_rank_starts_do_not_know_of_it(bench, mode):
    code = "import faulthandler, os; print(faulthandler.is_enabled(), 'PYTHONFAULTHANDLER' in os.environ)"
    bench.write(
        {"train.py": f"import subprocess, sys\nsubprocess.run([{sys.executable!r}, '-c', {code!r}], check=True)"}
    )
    assert bench.run(mode, bench.rank("train.py")).text == "False False\n"
