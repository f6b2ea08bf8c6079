"""The warm helper: imports the heavy modules once, then forks a rank for each request of the agent.

It is an interpreter that was started as `python train.py …`, with the ranks' environment, and that the injected
`sitecustomize` keeps from running the script. A forked process leaves `serve`, and the interpreter goes on by itself:
it finds the script, makes `__main__`, prints tracebacks, exits. Nothing of that is imitated here.

Until the preloaded modules are in, nothing is imported that a fresh interpreter has not loaded. `inject.py` copies
this text.

The two ends of a socket speak JSON lines. To the agent: `{"ready": true, "skipped": […]}` or `{"failed": "why"}`,
then for each request `{"pid": n}` or `{"error": "why"}`. From the agent: what `warm.py: render_request` makes. An end
of file ends the helper.

A rank is forked twice, so that it is a child of the agent (which adopts orphans) and outlives the helper, and it does
nothing until the agent has been told its pid: a helper that is killed at any moment leaves no rank that nobody knows.
"""

import os
import sys

_KNOWN = frozenset(sys.modules)

import gc  # noqa: E402 - built in, and not loaded in a fresh interpreter

if "gc" not in _KNOWN:
    del sys.modules["gc"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["Kept", "Unfit", "serve"]

_LONGEST_OUTPUT_BYTES = 65_536
_READ_BYTES = 65_536
_TITLE = b"gangline warm helper"
_ARG_START, _ARG_END = 45, 46
"""Fields of /proc/self/stat after the name in parentheses, from 0."""


class Unfit(Exception):
    """Why this process must not fork ranks."""


class Kept:
    """What ranks need to know of the helper."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        """As the helper was started with."""
        self.changes: dict[str, str | None] = {}
        """What the imports made of it; None: removed."""
        self.output = b""
        """What the imports printed."""
        self.own_modules: set[str] = set()
        """Names in `sys.modules` that only the helper needed."""
        self.command_line: tuple[int, bytes] | None = None
        """Where the arguments of this process lie in memory, and what they are."""
        self.seeded: set[str] = set()
        """Generators of random numbers that listed modules seeded (or drew from) when they were imported."""
        self.random_state: Any = None
        """Of `random`, if it is one of them: Python seeds that anew in every fork."""
        self.libc: Any = None
        self.unfreeze: Callable[[], None] = gc.unfreeze


def serve(
    settings: "dict[str, str]", become: "Callable[[dict[str, Any], Kept, int], dict[str, str]]"
) -> "dict[str, str]":
    """Import, then fork on request. Returns in each rank, with its settings; the helper itself ends by `os._exit`.

    Args:
        settings: `socket` (a descriptor), `timeout_s`, and what `_import_all` takes.
        become: `warmchild.become`.
    """
    descriptor, kept = int(settings["socket"]), Kept()
    kept.command_line = _hide_command_line()
    _reset_signals()
    try:
        _limit_time(int(settings["timeout_s"]))
        modules = settings["modules"].split()
        skipped = _import_all(modules, kept, start=settings["start"], offered=settings["offered"])
        _inspect(kept, descriptor)
        _limit_time(0)
    except Unfit as unfit:
        _send(descriptor, {"failed": str(unfit)})
        os._exit(0)
    _send(descriptor, {"ready": True, "skipped": skipped})
    for request in _requests(descriptor):
        gate = _fork(descriptor)
        if gate is not None:
            return become(request, kept, gate)
    os._exit(0)


def _hide_command_line() -> "tuple[int, bytes] | None":
    """Be `gangline warm helper` in `ps`, so that who looks for the script finds ranks alone. Ranks undo it."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        memory = os.open("/proc/self/mem", os.O_RDWR)
        try:
            arguments = os.pread(memory, end - begin, begin)
            os.pwrite(memory, _TITLE[: end - begin - 1].ljust(end - begin, b"\0"), begin)
        finally:
            os.close(memory)
    except OSError:  # a kernel that forbids it: the helper looks like a rank, and ranks as they should
        return None
    return begin, arguments


def _reset_signals() -> None:
    """As a shell hands them to a program, whatever the agent does with its own."""
    import _signal  # type: ignore[import-not-found]  # noqa: PLC0415 - loaded by every interpreter at its start

    for number in _signal.valid_signals():
        if _signal.getsignal(number) == _signal.SIG_IGN and number not in {_signal.SIGPIPE, _signal.SIGXFSZ}:
            _signal.signal(number, _signal.default_int_handler if number == _signal.SIGINT else _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _limit_time(seconds: int) -> None:
    """Be ended by SIGALRM then; 0: never. An import that hangs in C could not be ended otherwise."""
    import _signal  # noqa: PLC0415 - loaded by every interpreter at its start

    _signal.alarm(seconds)


def _import_all(modules: "list[str]", kept: Kept, *, start: str, offered: str) -> "list[str]":
    """Import with the `sys.path` that the script will have; returns what was left out.

    Args:
        modules: a leading `?` marks those that may be missing, `+` those that the spec lists, which may be local ones.
        start: what the interpreter will put in front of `sys.path`.
        offered: where listed modules find `gangline` if it is not installed.
    """
    known = set(sys.modules)
    enabled = gc.isenabled()
    gc.disable()  # nothing but waste of time while modules come in
    front = [] if getattr(sys.flags, "safe_path", False) else [start]
    sys.path[:0] = front
    libraries = [name for name in modules if not name.startswith("+")]
    skipped = [name[1:] for name in libraries if not _import(name.lstrip("?"), optional=name.startswith("?"))]
    _refuse_local(start, known)
    _import_listed([name[1:] for name in modules if name.startswith("+")], kept, offered)
    for entry in front:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)
    if enabled:
        gc.enable()
    return skipped


def _import_listed(modules: "list[str]", kept: Kept, offered: str) -> None:
    before = _generators()
    sys.path.append(offered)
    for name in modules:
        _import(name)
    sys.path.remove(offered)
    sys.path_importer_cache.pop(offered, None)
    after = _generators()
    kept.seeded = {name for name in before if before[name] != after[name]}
    kept.random_state = after["random"] if "random" in kept.seeded else None


def _generators() -> "dict[str, Any]":
    """State of each generator that is loaded, in a form that can be compared."""
    found = {}
    if (random := sys.modules.get("random")) is not None:
        found["random"] = random.getstate()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        _, keys, position, *_rest = numpy_random.get_state()
        found["numpy.random"] = (keys.tobytes(), position)
    if hasattr(torch := sys.modules.get("torch"), "get_rng_state"):
        found["torch"] = torch.get_rng_state().tolist()  # type: ignore[union-attr]
    return found


def _import(name: str, *, optional: bool = False) -> bool:
    try:
        __import__(name)
    except BaseException as error:
        if optional and isinstance(error, Exception):
            return False
        raise Unfit(f"importing {name} failed ({type(error).__name__}: {error})") from error
    return True


def _refuse_local(start: str, known: "set[str]") -> None:
    """A file of the user's with the name of a library's module was imported instead of that: an affair of the ranks."""
    for name in set(sys.modules) - known:
        spec = getattr(sys.modules[name], "__spec__", None)
        if "." in name or spec is None or not spec.has_location or not spec.origin:
            continue
        folder, file = os.path.split(os.path.realpath(spec.origin))
        if (os.path.dirname(folder) if file == "__init__.py" else folder) == start:
            raise Unfit(f"{spec.origin} stands in for a module of that name which a library imports")


def _inspect(kept: Kept, descriptor: int) -> None:
    """Note what the imports did to this process, and refuse what a fork would share or lose."""
    before = set(sys.modules)
    import ctypes  # noqa: PLC0415 - not before the preloaded modules; taken out again in ranks
    import json  # noqa: F401, PLC0415 - the same

    kept.own_modules = set(sys.modules) - before
    kept.libc = ctypes.CDLL(None)
    changed = {name for name in {*kept.environ, *os.environ} if kept.environ.get(name) != os.environ.get(name)}
    kept.changes = {name: os.environ.get(name) for name in changed}
    sys.stdout.flush()
    sys.stderr.flush()
    kept.output = os.pread(1, _LONGEST_OUTPUT_BYTES, 0)
    _refuse_devices()
    _refuse_files(descriptor)
    _refuse_threads()
    # What the imports made is left out of garbage collections, also in ranks until they end: its pages stay shared.
    gc.freeze()


def _refuse_devices() -> None:
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu", "mtia", "npu", "hpu"):
        is_initialized = getattr(getattr(torch, kind, None), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            raise Unfit(f"an import initialised a device ({kind}), which no forked process could use")


def _refuse_files(descriptor: int) -> None:
    """Ranks would share the position of a file and the other end of a connection."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor that read this list
            continue
        if int(name) > 2 and int(name) != descriptor:  # noqa: PLR2004 - 0, 1, 2
            raise Unfit(f"an import left {target} open")


def _refuse_threads() -> None:
    """Threads do not survive a fork. Pools that know this (OpenBLAS) end before one, and come again when used."""
    if len(os.listdir("/proc/self/task")) == 1:
        return
    probe = os.fork()
    if probe == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        raise Unfit(f"an import started {threads} thread(s), which a fork would lose")


def _fork(descriptor: int) -> "int | None":
    """Fork one rank. In the rank: the descriptor of its gate, see `warmchild.py`; in the helper: None."""
    gate_read, gate_write = os.pipe()
    told_read, told_write = os.pipe()
    stem = _try_fork()
    if stem == 0:
        rank = _try_fork()
        if rank == 0:
            os.close(gate_write)
            return gate_read
        if rank is not None:
            os.write(told_write, str(rank).encode())
        os._exit(0)
    os.close(told_write)
    os.close(gate_read)
    told = os.read(told_read, 32) if stem is not None else b""
    os.close(told_read)
    if stem is not None:
        os.waitpid(stem, 0)
    _send(descriptor, {"pid": int(told)} if told else {"error": "no process could be forked"})
    try:
        os.write(gate_write, b"x")
    except BrokenPipeError:  # it is gone already
        pass
    os.close(gate_write)
    return None


def _try_fork() -> "int | None":
    try:
        return os.fork()
    except OSError:
        return None


def _send(descriptor: int, message: "dict[str, Any]") -> None:
    import json  # noqa: PLC0415 - see the module's docstring

    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _requests(descriptor: int) -> "Iterator[dict[str, Any]]":
    import json  # noqa: PLC0415 - see the module's docstring

    waiting = b""
    while piece := os.read(descriptor, _READ_BYTES):
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)
