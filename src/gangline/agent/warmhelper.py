"""The warm helper: imports the heavy modules once, then forks a rank for each request of the agent.

Started by `warm.py` with the user's interpreter and the ranks' environment as `python -c BOOT ROOT FD START MODULE… PADDING`. It must
leave no trace in the ranks: until the preloaded modules are in, nothing is imported that a fresh interpreter has not loaded.
Therefore this module, `warmchild.py` and `failure.py` import at their top only what is there already.

The two ends of a socket speak JSON lines. To the agent: `{"ready": true, "skipped": […]}` or `{"failed": "why"}`, then for each
request `{"pid": n}` or `{"error": "why"}`. From the agent: what `warm.py: render_request` makes. An end of file ends the helper.

A rank is forked twice, so that it is a child of the agent (which adopts orphans) and outlives the helper, and it does nothing
until the agent has been told its pid: a helper that is killed at any moment leaves no rank that nobody knows.
"""

import gc
import os
import sys

from gangline.agent.warmchild import Child, Kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

__all__ = ["BOOT", "serve"]

BOOT = """\
import sys
known = set(sys.modules)
for name, part in (("gangline", ""), ("gangline.agent", "/agent")):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/gangline" + part]
from gangline.agent.warmhelper import serve
child = serve(known, sys.modules["__main__"])
run, arguments = child.prepare()
try:
    run(*arguments)
except BaseException as error:
    child.leave(error)
    raise
"""
"""The lowest frame of every rank: `serve` returns in forked ranks only. `gangline` is a bare name for its folder here, so that
neither the package's own start nor the user's version of it is loaded."""

_LONGEST_OUTPUT_BYTES = 65_536
_READ_BYTES = 65_536


class Unfit(Exception):  # noqa: N818 - a finding, not a fault
    """Why this process must not fork ranks."""


def serve(known: set[str], main: "ModuleType") -> Child:
    """Import, then fork on request. Returns in each rank; the helper itself ends by `os._exit`.

    Args:
        known: names in `sys.modules` before anything of Gangline was loaded.
        main: the module that runs BOOT; kept alive.
    """
    bundle, descriptor, start, *modules = sys.argv[1], int(sys.argv[2]), *sys.argv[3:-1]
    for name in set(sys.modules) - known:
        del sys.modules[name]
    kept = Kept(main=main, bundle=bundle, environ=dict(os.environ))
    _be_default()
    try:
        skipped = _import_all(start, modules, known)
        _inspect(kept, descriptor)
    except Unfit as unfit:
        _send(descriptor, {"failed": str(unfit)})
        os._exit(0)
    _send(descriptor, {"ready": True, "skipped": skipped})
    for request in _requests(descriptor):
        child = _fork(descriptor, request, kept)
        if child is not None:
            return child
    os._exit(0)


def _be_default() -> None:
    """Signals as a shell hands them to a program, whatever the agent does with its own."""
    import _signal  # noqa: PLC0415 - loaded by every interpreter at its start

    for number in _signal.valid_signals():
        if _signal.getsignal(number) == _signal.SIG_IGN and number not in {_signal.SIGPIPE, _signal.SIGXFSZ}:
            _signal.signal(number, _signal.default_int_handler if number == _signal.SIGINT else _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _import_all(start: str, modules: "list[str]", known: "set[str]") -> "list[str]":
    """Import with the `sys.path` that the script will have; returns what was left out.

    Args:
        start: what stands in front of `sys.path`.
        modules: a leading `?` marks those that may be missing, `+` those that the spec lists, which may be local ones.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = start
    enabled = gc.isenabled()
    gc.disable()  # nothing but waste of time while modules come in
    libraries = [name for name in modules if not name.startswith("+")]
    skipped = [name[1:] for name in libraries if not _import(name.lstrip("?"), optional=name.startswith("?"))]
    _refuse_local(start, known)
    for name in modules:
        if name.startswith("+"):
            _import(name[1:])
    if enabled:
        gc.enable()
    return skipped


def _import(name: str, *, optional: bool = False) -> bool:
    try:
        __import__(name)
    except BaseException as error:
        if optional and isinstance(error, Exception):
            return False
        raise Unfit(f"importing {name} failed ({type(error).__name__}: {error})") from error
    return True


def _refuse_local(start: str, known: "set[str]") -> None:
    """A file of the user's that has the name of a library's module was imported instead of it: that is the ranks' own affair."""
    for name in set(sys.modules) - known:
        spec = getattr(sys.modules[name], "__spec__", None)
        if "." in name or not getattr(spec, "has_location", False):
            continue
        origin = spec.origin
        folder, file = os.path.split(os.path.realpath(origin))
        if (os.path.dirname(folder) if file == "__init__.py" else folder) == start:
            raise Unfit(f"{origin} stands in for a module of that name which a library imports")


def _inspect(kept: Kept, descriptor: int) -> None:
    """Note what the imports did to this process, and refuse what a fork would share or lose."""
    before = set(sys.modules)
    import ctypes  # noqa: PLC0415 - not before the preloaded modules; taken out in ranks that did not load it
    import json  # noqa: PLC0415 - the same

    kept.own_modules = set(sys.modules) - before
    kept.json = json
    kept.libc = ctypes.CDLL(None)
    kept.libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    changed = {name for name in {*kept.environ, *os.environ} if kept.environ.get(name) != os.environ.get(name)}
    kept.changes = {name: os.environ.get(name) for name in changed}
    sys.stdout.flush()
    sys.stderr.flush()
    kept.output = os.pread(1, _LONGEST_OUTPUT_BYTES, 0)
    _refuse_devices()
    _refuse_files(descriptor)
    _refuse_threads()
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
    """Threads do not survive a fork. Pools that know this (OpenBLAS) end before a fork and come again when they are used."""
    if len(os.listdir("/proc/self/task")) == 1:
        return
    probe = os.fork()
    if probe == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        raise Unfit(f"an import started {len(threads) - 1} thread(s), which a fork would lose")


def _fork(descriptor: int, request: "dict[str, Any]", kept: Kept) -> "Child | None":
    """Fork one rank. Returns its `Child` in the rank and None in the helper."""
    gate_read, gate_write = os.pipe()
    told_read, told_write = os.pipe()
    stem = _try_fork()
    if stem == 0:
        rank = _try_fork()
        if rank == 0:
            os.close(gate_write)
            return Child(request, kept, gate=gate_read)
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
    while True:
        piece = os.read(descriptor, _READ_BYTES)
        if not piece:
            return
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)
