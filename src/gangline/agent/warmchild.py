"""What a process that the warm helper forked does until it is what `python train.py` would be.

Imports at its top only what every interpreter has loaded; see `warmhelper.py`.
"""

import gc
import os
import sys

from gangline.agent.failure import is_telling, write_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn

__all__ = ["Child", "Kept"]

_PR_SET_PDEATHSIG = 1
_PR_SET_MM = 35
_PR_SET_MM_ARG_END = 9
_SIGKILL = 9
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_ARG_START, _ARG_END = 47, 48
"""Fields of /proc/self/stat, from 0."""


class Kept:
    """What the helper notes before it forks."""

    def __init__(self, *, main: "ModuleType", bundle: str, environ: "dict[str, str]") -> None:
        self.main = main
        self.bundle = bundle
        self.environ = environ
        """As the helper was started with."""
        self.changes: dict[str, str | None] = {}
        """What the imports made of it; None: removed."""
        self.output = b""
        """What the imports printed."""
        self.own_modules: set[str] = set()
        """Names in `sys.modules` that only the helper needed."""
        self.json: Any = None
        self.libc: Any = None


class Child:
    """One forked rank, before it runs the user's code."""

    def __init__(self, request: "dict[str, Any]", kept: Kept, *, gate: int) -> None:
        self._request = {key: _from_wire(value) for key, value in request.items()}
        self._kept = kept
        self._gate = gate
        self._pid = os.getpid()

    def prepare(self) -> "tuple[Callable[..., Any], tuple[Any, ...]]":
        """Become the rank; what is to be called, and with what.

        Where a forked process could not do exactly what a fresh one does (a script that cannot be read or compiled), this
        executes the interpreter anew instead.
        """
        self._await_gate()
        try:
            self._detach()
            self._open_streams()
            os.chdir(self._request["cwd"])
            call = self._find_call()
        except OSError as error:
            os.write(2, f"gangline: cannot start this rank: {error}\n".encode("utf-8", "surrogateescape"))
            os._exit(_NOT_EXECUTABLE)
        self._replace_environment()
        self._claim_command_line()
        self._forget_helper()
        self._register_stacks()
        self._renew_state()
        return call

    def leave(self, error: BaseException) -> None:
        """The user's code raised: note it, and take the helper's frame out of the traceback."""
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
        if os.getpid() == self._pid and is_telling(error):
            write_failure(self._request["error_path"], error, error.__traceback__)

    # Becoming a process of its own

    def _await_gate(self) -> None:
        if not os.read(self._gate, 1):  # the helper died before the agent knew of this rank
            os.kill(self._pid, _SIGKILL)

    def _detach(self) -> None:
        os.setsid()
        parent = int(self._request["parent"])
        self._kept.libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(self._pid, _SIGKILL)

    def _open_streams(self) -> None:
        """stdout and stderr become the log file; the text streams over them are the interpreter's own and hold nothing back."""
        log = os.open(self._request["log_path"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:  # noqa: PLR2004 - 0, 1, 2
                _close(int(name))
        if self._kept.output:
            os.write(1, self._kept.output)

    # Becoming the user's program

    def _find_call(self) -> "tuple[Callable[..., Any], tuple[Any, ...]]":
        argv: list[str] = self._request["argv"]
        sys.orig_argv[:] = argv
        if self._request["entry_kind"] == "module":
            sys.argv = ["-m", *argv[3:]]
            self._set_path(os.getcwd())
            _new_main(self._kept.main)
            import runpy  # noqa: PLC0415 - what the interpreter does for -m

            return runpy._run_module_as_main, (argv[2],)  # type: ignore[attr-defined]  # noqa: SLF001 - the same
        sys.argv = argv[1:]
        file = os.path.abspath(argv[1])
        code = self._compile(file)
        self._set_path(os.path.dirname(os.path.realpath(file)))
        main = _new_main(self._kept.main)
        main.__dict__["__file__"] = file
        main.__dict__["__cached__"] = None
        main.__dict__["__loader__"] = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", file)
        return exec, (code, main.__dict__)

    def _compile(self, file: str) -> "Any":
        """The code of a script. Where there is none, a fresh interpreter says why in its own words."""
        try:
            with open(file, "rb") as source:
                return compile(source.read(), file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            self._execute()

    def _execute(self) -> "NoReturn":
        import _signal  # noqa: PLC0415 - loaded by every interpreter at its start

        for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT):
            _signal.signal(number, _signal.SIG_DFL)
        env = {**self._request["env"], **self._request["injection"]}
        argv = self._request["argv"]
        try:
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"gangline: cannot start `{argv[0]}`: {error.strerror}\n".encode("utf-8", "surrogateescape"))
            os._exit(_NOT_FOUND)

    def _set_path(self, start: str) -> None:
        """`sys.path` as the interpreter makes it, and the agent's bundle at its end."""
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = start
        sys.path.append(self._kept.bundle)
        for folder in (start, f"{self._kept.bundle}/gangline", f"{self._kept.bundle}/gangline/agent"):
            sys.path_importer_cache.pop(folder, None)

    def _replace_environment(self) -> None:
        """Exactly what was asked for, and on top of it what importing the preloaded modules changes."""
        kept, wanted = self._kept, dict(self._request["env"])
        for name, value in kept.changes.items():
            if wanted.get(name) == kept.environ.get(name):
                wanted[name] = value
        for name in list(os.environ):
            del os.environ[name]
        os.environ.update({name: value for name, value in wanted.items() if value is not None})

    def _claim_command_line(self) -> None:
        """What `ps` and `pgrep -f` show: the memory that holds the arguments, and where it ends if the kernel lets us say so."""
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        begin, end = int(fields[_ARG_START - 2]), int(fields[_ARG_END - 2])
        text = b"".join(os.fsencode(argument) + b"\0" for argument in self._request["argv"])[: end - begin - 1]
        try:
            memory = os.open("/proc/self/mem", os.O_RDWR)
            os.pwrite(memory, text.ljust(end - begin, b"\0"), begin)
            os.close(memory)
        except OSError:  # a kernel that forbids it: the helper's own command line stays visible
            return
        self._kept.libc.prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, begin + len(text), 0, 0)

    def _forget_helper(self) -> None:
        for name in self._kept.own_modules:
            sys.modules.pop(name, None)
        gc.unfreeze()

    def _register_stacks(self) -> None:
        """Dump the stacks of all threads into the rank's file on a signal, as the injected `sitecustomize` does."""
        known = "faulthandler" in sys.modules
        import faulthandler  # noqa: PLC0415 - built in, and taken out again

        if not known:
            del sys.modules["faulthandler"]
        opened = os.open(self._request["stacks_path"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            file = os.dup2(opened, int(self._request["stacks_descriptor"]), inheritable=False)
            os.close(opened)
            faulthandler.register(int(self._request["stacks_signal"]), file=file, all_threads=True, chain=False)
        except (OSError, ValueError, RuntimeError) as trouble:
            os.write(2, f"gangline: no stacks can be taken of this rank: {trouble}\n".encode())

    def _renew_state(self) -> None:
        """What modules drew or noted when the helper imported them, and would differ in a fresh process."""
        loaded = sys.modules.get
        if (numpy_random := loaded("numpy.random")) is not None:
            numpy_random.seed()
        if (process := loaded("multiprocessing.process")) is not None:
            process.current_process().authkey = os.urandom(32)
            process.ORIGINAL_DIR = os.getcwd()
        if (tempfile := loaded("tempfile")) is not None:
            tempfile.tempdir = None
        if (logging := loaded("logging")) is not None and (time := loaded("time")) is not None:
            logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()  # noqa: SLF001


def _new_main(old: "ModuleType") -> "ModuleType":
    """A `__main__` with what the interpreter puts into a fresh one."""
    main = type(sys)("__main__")
    if "__annotations__" in old.__dict__:
        main.__dict__["__annotations__"] = {}
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    main.__dict__["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
    sys.modules["__main__"] = main
    return main


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # the one that read the list
        pass


def _from_wire(value: "Any") -> "Any":
    """Bytes travel as one character each, so that no encoding is involved; here they become what this interpreter makes of them."""
    if isinstance(value, str):
        return os.fsdecode(value.encode("latin-1"))
    if isinstance(value, list):
        return [_from_wire(one) for one in value]
    if isinstance(value, dict):
        return {_from_wire(key): _from_wire(one) for key, one in value.items()}
    return value

