# ruff: noqa: E501 - a script of a rank is one line of a table
"""A rank is what `python train.py` would be: each row is a script whose whole output and end are equal in three ways to run it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Row:
    """One script (or module `pkg.m`) and what surrounds it."""

    name: str
    script: str | bytes
    entry: str = "train.py"
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def show(expression: str, *, imports: str = "") -> str:
    """A script that prints one value as JSON; its own imports come after the value was taken where they could disturb it."""
    return f"{imports}\nvalue = {expression}\nimport json\nprint(json.dumps(value, indent=1, default=repr))\n"


PLACE = [
    Row(
        name="main-globals",
        script="names = sorted(globals())\nprint(names, __name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__,"
        " __loader__.name, __loader__.path, type(__builtins__), __cached__ if '__cached__' in names else None)\n"
        "import sys\nprint(sys.modules['__main__'].__dict__ is globals(), type(sys.modules['__main__']))\nimport __main__\nprint(__main__)",
    ),
    Row(
        name="argv",
        script=show("[sys.argv, sys.orig_argv, sys.executable]", imports="import sys"),
        args=["a b", "", "ü", "x\ny", "--lr=3", "'\"$"],
    ),
    Row(
        name="argv-not-utf8",
        script="import sys\nprint(ascii(sys.argv), ascii(sys.orig_argv))",
        args=["\udcff", "\udcc3("],
    ),
    Row(
        name="sys-path",
        script=show("[sys.path, sys.path_hooks, sys.meta_path, sys.prefix]", imports="import sys").replace(
            "repr)", "lambda x: type(x).__name__)"
        ),
    ),
    Row(name="sys-path-safe", script=show("sys.path", imports="import sys"), env={"PYTHONSAFEPATH": "1"}),
    Row(
        name="sys-path-given",
        script=show("sys.path, os.environ['PYTHONPATH']", imports="import sys, os"),
        env={"PYTHONPATH": "lib:/nowhere"},
    ),
    Row(
        name="python-path-empty",
        script=show("sys.path, os.environ.get('PYTHONPATH')", imports="import sys, os"),
        env={"PYTHONPATH": ""},
    ),
    Row(
        name="script-in-folder",
        script=show("[sys.path[0], sys.argv, __file__, near.x]", imports="import sys, near"),
        entry="src/train.py",
        files={"src/near.py": "x = 1"},
    ),
    Row(
        name="script-absolute-dots",
        script=show("[sys.path[0], sys.argv, __file__]", imports="import sys"),
        entry="./src/../src/train.py",
        files={"src/x": ""},
    ),
    Row(name="modules-loaded", script="import sys\nprint(sorted(sys.modules))"),
    Row(
        name="gangline",
        script="import gangline\nprint(gangline.__file__, gangline.current().rank)\nimport sys\nprint(sorted(n for n in sys.modules if n.startswith('gangline.agent')))",
    ),
    Row(
        name="module",
        entry="pkg.run",
        args=["1"],
        script="from . import near\nfrom .near import x\nimport sys\nprint(__name__, __package__, __spec__.name, __file__, x, sys.argv, sys.orig_argv, sys.path[0], sorted(globals()))",
        files={"pkg/__init__.py": "print('package', __name__)", "pkg/near.py": "x = 5"},
    ),
    Row(
        name="module-package",
        entry="pkg",
        script="",
        files={
            "pkg/__init__.py": "",
            "pkg/__main__.py": "import sys\nprint(__name__, __package__, __spec__, sys.argv)",
        },
    ),
    Row(
        name="module-modules-loaded",
        entry="pkg.run",
        script="import sys\nprint(sorted(sys.modules))",
        files={"pkg/__init__.py": ""},
    ),
    Row(name="module-missing", entry="pkg.nowhere", script="", files={"pkg/__init__.py": ""}),
    Row(
        name="bytecode",
        script="import near, os\nprint([sorted(f) for _, _, f in os.walk('.')])",
        files={"near.py": ""},
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    ),
    Row(
        name="folder-entry",
        entry="app/",
        script="",
        files={"app/__main__.py": "import sys\nprint(__name__, __file__, sys.path[0], sys.argv)"},
    ),
]

ENDS = [
    Row(name="uncaught", script="def f():\n    raise ValueError('häßlich')\n\nf()\n"),
    Row(
        name="chained",
        script="try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('two\\nlines') from e\n",
    ),
    Row(name="context", script="try:\n    {}['a']\nexcept KeyError:\n    [][1]\n"),
    Row(name="module-uncaught", entry="pkg.run", script="raise OSError(2, 'no', 'f')", files={"pkg/__init__.py": ""}),
    Row(name="in-import", script="import near", files={"near.py": "x = 1\nraise ImportError('bad')\n"}),
    Row(name="syntax-error", script="x = 1\nif x\n    pass\n"),
    Row(name="syntax-error-import", script="import near", files={"near.py": "def f(:\n"}),
    Row(name="not-utf8", script=b"x = '\xe9'\n"),
    Row(name="latin-1", script=b"# coding: latin-1\nprint(ascii('\xe9'))\n"),
    Row(name="bom-crlf", script=b"\xef\xbb\xbfx = 1\r\nprint(x,\r\n __doc__)\r\n"),
    Row(name="null-bytes", script=b"x = 1\n\0\n"),
    Row(name="missing", script="", entry="nowhere/train.py"),
    Row(name="keyboard-interrupt", script="raise KeyboardInterrupt"),
    Row(name="sigint", script="import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(10)"),
    Row(name="recursion-error", script="import sys\nsys.setrecursionlimit(50)\ndef f(): f()\nf()"),
    Row(name="excepthook", script="import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno)\n1/0"),
    Row(name="excepthook-fails", script="import sys\ndef hook(*a): raise KeyError('hook')\nsys.excepthook = hook\n1/0"),
    Row(
        name="thread-error",
        script="import threading\ndef f(): raise ValueError('t')\nt = threading.Thread(target=f, name='T')\nt.start(); t.join()\nprint('on')",
    ),
    Row(
        name="unraisable", script="class A:\n    def __del__(self): raise ValueError('del')\nx = A()\ndel x\ny = A()\n"
    ),
    Row(name="exit-none", script="import sys\nsys.exit()"),
    Row(name="exit-3", script="import sys\nsys.exit(3)"),
    Row(name="exit-text", script="import sys\nsys.exit('no data')"),
    Row(name="exit-large", script="import sys\nsys.exit(256 + 7)"),
    Row(name="exit-negative", script="raise SystemExit(-1)"),
    Row(name="exit-tuple", script="import sys\nsys.exit((1, 2))"),
    Row(
        name="exit-in-thread",
        script="import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,))\nt.start(); t.join()\nprint('on')",
    ),
    Row(name="exit-at-once", script="import os\nprint('x')\nos._exit(7)"),
    Row(name="abort", script="import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()"),
    Row(name="sigterm", script="import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()"),
    Row(name="sigkill", script="import os\nfor i in range(5): print(i)\nos.kill(os.getpid(), 9)"),
    Row(
        name="segfault",
        script="import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nctypes.string_at(0)",
    ),
    Row(
        name="atexit-order",
        script="import atexit, threading, time, sys\natexit.register(print, 'registered first')\n"
        "def late():\n    time.sleep(0.3)\n    print('thread', threading.main_thread().is_alive())\n"
        "class A:\n    def __del__(self): print('deleted')\n"
        "kept = A()\nthreading.Thread(target=late).start()\natexit.register(print, 'registered last')\n"
        "f = open('left-open.txt', 'w')\nf.write('flushed')\nsys.stdout.write('no newline')",
    ),
    Row(
        name="left-open",
        script="import subprocess, sys\nsubprocess.run([sys.executable, '-c', \"f = open('f', 'w'); f.write('x')\"])\nf = open('g', 'w')\nf.write('y')\nimport atexit\natexit.register(lambda: print(open('f').read(), f.closed))",
    ),
    Row(name="atexit-fails", script="import atexit\natexit.register(lambda: 1/0)"),
    Row(
        name="warning-shown",
        script="import warnings\ndef f():\n    warnings.warn('w', stacklevel=2)\nf()\nf()\nwarnings.warn('d', DeprecationWarning)\nwarnings.warn('far', stacklevel=3)",
    ),
]

PROCESS = [
    Row(
        name="stack",
        script="import inspect, sys, traceback\nprint([f.filename for f in inspect.stack()], sys._getframe().f_back)\ntraceback.print_stack()",
    ),
    Row(
        name="recursion-depth",
        script="import sys\ndef f(n):\n    try:\n        return f(n + 1)\n    except RecursionError:\n        return n\nprint(f(0), sys.getrecursionlimit())",
    ),
    Row(
        name="streams",
        script="import sys, os, fcntl\nfor f in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__):\n"
        "    print(f.name, f.mode, f.encoding, f.errors, f.line_buffering, f.write_through, f.isatty(), f.fileno(), f.seekable(), type(f.buffer), getattr(f.buffer, 'raw', f.buffer))\n"
        "print([fcntl.fcntl(n, fcntl.F_GETFL) & ~os.O_CREAT for n in (0, 1, 2)], os.readlink('/proc/self/fd/0'), os.path.samefile('/dev/fd/1', '/dev/fd/2'))",
    ),
    Row(
        name="streams-buffered",
        script="import sys\nprint([(f.line_buffering, f.write_through, type(f.buffer).__name__) for f in (sys.stdout, sys.stderr)])\nsys.stderr.write('first\\n')",
        env={"PYTHONUNBUFFERED": ""},
    ),
    Row(
        name="streams-latin-1",
        script="import sys\nprint('\\xe9', sys.stdout.encoding, sys.stdout.errors)",
        env={"PYTHONIOENCODING": "latin-1:replace"},
    ),
    Row(name="stdin", script="import sys\nprint(repr(sys.stdin.read()))\ninput()"),
    Row(
        name="session",
        script=show("[os.getppid(), os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()]", imports="import os"),
    ),
    Row(
        # Ranks catch the signal that asks for their stacks, and those of crashes.
        name="signals",
        script="import signal\nprint([(int(n), str(signal.getsignal(n))) for n in sorted(signal.valid_signals())], signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(2) is signal.default_int_handler)\n"
        "for line in open('/proc/self/status'):\n    if line.startswith(('SigIgn', 'SigBlk', 'SigCgt', 'ShdPnd')):\n        print(line[:7], hex(int(line[7:], 16) & ~(1 << 61 | 0x4E8)))",
    ),
    Row(
        name="signal-handler",
        script="import signal, os, time\ndone = []\nsignal.signal(signal.SIGUSR1, lambda *a: done.append(a[0]))\nos.kill(os.getpid(), signal.SIGUSR1)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.signal(signal.SIGALRM, lambda *a: print(done))\nsignal.pause()",
    ),
    Row(
        name="environment",
        script="import os, ctypes\nprint(list(os.environb.items()))\nget = ctypes.CDLL(None).getenv\nget.restype = ctypes.c_char_p\nprint([get(name) for name in os.environb])\n"
        "import subprocess\nprint(sorted(subprocess.run(['env', '-0'], capture_output=True).stdout.split(b'\\0')))",
        env={"A": "x=y", "QUOTES": "'\"$HOME`", "LINES": "a\nb\n", "EMPTY": "", "BYTES": "\udcff\udcfe", "ÜBER": "ü"},
    ),
    Row(
        name="limits",
        script="import os, resource as r\nprint(os.getcwd(), oct(os.umask(0)), sorted(os.sched_getaffinity(0)), os.nice(0), [r.getrlimit(n) for n in range(16)], open('/proc/self/oom_score_adj').read(), open('/proc/self/cgroup').read())",
    ),
    Row(
        name="descriptors",
        script="import os\nfound = []\nfor n in os.listdir('/proc/self/fd'):\n    if os.path.exists('/proc/self/fd/' + n):\n        found.append(int(n))\nprint(sorted(set(found) - {250}), open('train.py').fileno())",
    ),
    Row(
        name="command-line",
        script="print(open('/proc/self/cmdline', 'rb').read(), open('/proc/self/comm').read())",
        args=["--lr", "3e-4", "a b"],
    ),
    Row(
        name="threads",
        script="import threading, os\nt = threading.main_thread()\nprint(t, t is threading.current_thread(), t.native_id == os.getpid(), threading.active_count(), len(os.listdir('/proc/self/task')))".replace(
            "print(t,", "print(t.name, t.daemon,"
        ),
    ),
    Row(
        name="interpreter",
        script="import sys, locale, gc, tracemalloc, warnings, signal, time\n"
        "print(sys.flags, sys.warnoptions, sys._xoptions, sys.getrecursionlimit(), sys.dont_write_bytecode, sys.pycache_prefix, sys.getswitchinterval())\n"
        "print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), tracemalloc.is_tracing(), sys.gettrace(), sys.getprofile())\n"
        "print(locale.getlocale(), locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.setlocale(locale.LC_ALL))\n"
        "print(warnings.filters, time.process_time() < 5, hasattr(sys, 'last_value'), sys.exc_info(), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)",
    ),
    Row(
        name="variables-at-start",
        script="import sys, warnings, faulthandler\nprint(sys.flags, sys.warnoptions, warnings.filters, hash('a'), faulthandler.is_enabled(), __debug__)\nassert False",
        env={
            "PYTHONWARNINGS": "error::UserWarning,ignore",
            "PYTHONHASHSEED": "7",
            "PYTHONOPTIMIZE": "1",
            "PYTHONFAULTHANDLER": "1",
        },
    ),
    Row(
        name="locale-c",
        script="import sys, locale\nprint(sys.stdout.encoding, sys.stdout.errors, locale.setlocale(locale.LC_ALL, ''), sys.flags.utf8_mode)",
        env={"LANG": "", "LC_ALL": "C"},
    ),
    Row(
        name="usage",
        script="import resource, os, time\nu = resource.getrusage(resource.RUSAGE_CHILDREN)\nprint(u.ru_utime, u.ru_stime, sum(os.times()[:2]) < 1, time.process_time() < 1)\nimport logging\nprint(logging.makeLogRecord({}).relativeCreated < 1000)",
    ),
]

LIBRARY = [
    Row(
        name="multiprocessing",
        script="import multiprocessing as mp, os, sys\n\nclass Thing:\n    def __init__(self, x): self.x = x\n\n"
        "def work(thing, queue):\n    queue.put((type(thing).__module__, thing.x, __name__, mp.current_process().name, os.getcwd(), sys.argv, __file__))\n\n"
        "if __name__ == '__main__':\n    print(mp.current_process(), mp.parent_process(), mp.get_start_method())\n"
        "    for method in ('fork', 'spawn', 'forkserver'):\n        c = mp.get_context(method)\n        q = c.Queue()\n"
        "        p = c.Process(target=work, args=(Thing(5), q))\n        p.start()\n        print(method, q.get(timeout=60))\n        p.join()\n        print(p.exitcode)",
        args=["x"],
    ),
    Row(
        name="multiprocessing-module",
        entry="pkg.run",
        script="import multiprocessing as mp\nfrom .near import x\n\ndef work(q): q.put((__name__, x))\n\n"
        "if __name__ == '__main__':\n    c = mp.get_context('spawn')\n    q = c.Queue()\n    p = c.Process(target=work, args=(q,))\n    p.start()\n    print(q.get(timeout=60))\n    p.join()",
        files={"pkg/__init__.py": "", "pkg/near.py": "x = 3"},
    ),
    Row(
        name="pools",
        script="import concurrent.futures as f, multiprocessing as mp\n\ndef square(x): return x * x\n\n"
        "if __name__ == '__main__':\n    for c in ('fork', 'spawn'):\n        with f.ProcessPoolExecutor(1, mp_context=mp.get_context(c)) as pool:\n            print(list(pool.map(square, range(3))))\n"
        "    with f.ThreadPoolExecutor(2) as pool:\n        print(list(pool.map(square, range(3))))\n    with mp.Pool(1) as pool:\n        print(pool.map(square, range(3)))",
    ),
    Row(
        name="spawn-without-guard",
        script="import multiprocessing as mp\nimport sys\nmp.set_start_method('spawn')\np = mp.Process(target=print)\np.start()\np.join()\nprint(p.exitcode)",
    ),
    Row(
        name="introspection",
        script="import inspect, pickle, dataclasses, enum, typing, linecache, runpy, sys\n\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\n\nclass E(enum.Enum):\n    V = 1\n\n"
        "def f():\n    return 1\n\nprint(pickle.loads(pickle.dumps([A(3), E.V, f])) == [A(3), E.V, f], pickle.dumps(A(3)))\nprint(inspect.getsource(f), inspect.getfile(A), inspect.getsource(A), inspect.getmodule(f))\n"
        "print(typing.get_type_hints(A), f.__module__, f.__code__.co_filename, linecache.getline(__file__, 1))\nprint(runpy.run_path('near.py')['x'])",
        files={"near.py": "x = 2"},
    ),
    Row(
        name="fork",
        script="import os\npid = os.fork()\nif pid == 0:\n    raise ValueError('child')\nprint(os.waitpid(pid, 0)[1])",
    ),
    Row(
        name="subprocess",
        script="import subprocess, sys\nprint('before')\nsubprocess.run([sys.executable, '-c', 'import sys, os; print(sys.path, sorted(os.environ), sorted(sys.modules))'], check=True)\nsubprocess.run('echo shell', shell=True)\nprint('after')",
    ),
    Row(
        name="asyncio",
        script="import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'x')\n    print(await p.wait(), await asyncio.to_thread(lambda: 3))\nasyncio.run(main())",
    ),
    Row(
        name="unittest",
        script="import unittest\nclass T(unittest.TestCase):\n    def test_x(self): self.assertEqual(1, 2)\nimport re, sys, io\nunittest.main(exit=False, testRunner=unittest.TextTestRunner(stream=io.StringIO()))\nprint('on')",
    ),
    Row(
        name="argparse",
        script="import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()",
        args=["--lr", "x"],
    ),
    Row(name="logging", script="import logging\nlogging.basicConfig()\nlogging.warning('w %s', 1, stack_info=True)"),
]

ROWS = PLACE + ENDS + PROCESS + LIBRARY


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_ranks_are_what_python_makes_of_the_script(row, bench):
    path = row.entry if "/" in row.entry or row.entry.endswith(".py") else row.entry.replace(".", "/") + ".py"
    is_made_by_files = any(name.startswith(row.entry) for name in row.files) or row.name in {
        "missing",
        "module-missing",
    }
    bench.write({**row.files, **({} if is_made_by_files else {path: row.script})})
    ended = {
        mode: bench.run(mode, bench.rank(row.entry, args=row.args, env=row.env)) for mode in ("plain", "exec", "warm")
    }

    def shown(mode):
        one = ended[mode]
        return one.exit_code, one.signal, re.sub(r"0x[0-9a-f]{8,}", "0x", one.text)

    assert shown("exec") == shown("plain")
    assert shown("warm") == shown("plain")
