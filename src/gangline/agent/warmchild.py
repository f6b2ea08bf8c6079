"""What a process that the warm helper forked does before it goes on as `python train.py`.

`inject.py` copies this text; it imports at its top only what every interpreter has loaded. See `warmhelper.py`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gangline.agent.warmhelper import Kept

__all__ = ["become"]

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_NOT_EXECUTABLE = 126
_TORCH_FIXED_SEED = 67280421310721
"""With which torch begins in every process, except in builds that draw one."""


def become(request: "dict[str, Any]", kept: "Kept", gate: int) -> "dict[str, str]":
    """Become the rank that was asked for.

    Args:
        gate: descriptor that gives one byte once the agent knows of this process, and none if it never will.
    Returns:
        The settings of the injected `sitecustomize`.
    """
    if not os.read(gate, 1):  # the helper died before the agent knew of this rank
        os.kill(os.getpid(), _SIGKILL)
    order = _from_wire(request)
    os.setsid()
    _die_with(int(order["parent"]), kept)
    try:
        _open_streams(order["log_path"], kept.output)
        os.chdir(order["cwd"])
    except OSError as error:
        os.write(2, f"gangline: cannot start this rank: {error}\n".encode("utf-8", "surrogateescape"))
        os._exit(_NOT_EXECUTABLE)
    _replace_environment(order["env"], kept)
    _show_command_line(kept)
    for name in kept.own_modules:
        sys.modules.pop(name, None)
    _renew_state()
    _renew_thread()
    _draw_anew(kept)
    _unfreeze_at_exit(kept)
    return dict(order["settings"])


def _die_with(parent: int, kept: "Kept") -> None:
    """Be killed when the agent ends, also if it has already: it is the parent, as the process between is gone."""
    kept.libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), _SIGKILL)


def _open_streams(log_path: str, output: bytes) -> None:
    """Make the log stdout and stderr; the text streams over them are the interpreter's own, and hold nothing back."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:  # noqa: PLR2004 - 0, 1, 2
            _close(int(name))
    if output:
        os.write(1, output)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # the one that read the list
        pass


def _replace_environment(env: "dict[str, str]", kept: "Kept") -> None:
    """Exactly what was asked for, and on top of it what importing the preloaded modules changes."""
    wanted: dict[str, str | None] = dict(env)
    for name, value in kept.changes.items():
        if wanted.get(name) == kept.environ.get(name):
            wanted[name] = value
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if value is not None})


def _show_command_line(kept: "Kept") -> None:
    """What `ps` and `pgrep -f` show is again what this interpreter was started with."""
    if kept.command_line is None:
        return
    begin, arguments = kept.command_line
    memory = os.open("/proc/self/mem", os.O_RDWR)
    os.pwrite(memory, arguments, begin)
    os.close(memory)


def _renew_state() -> None:
    """What modules noted when the helper imported them, and what would differ in a fresh process."""
    loaded = sys.modules.get
    if (process := loaded("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    if (tempfile := loaded("tempfile")) is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]
    if (logging := loaded("logging")) is not None and (time := loaded("time")) is not None:
        nanoseconds = isinstance(getattr(logging, "_startTime", None), int)
        setattr(logging, "_startTime", time.time_ns() if nanoseconds else time.time())  # noqa: B010 - private, on purpose


def _renew_thread() -> None:
    """The number by which the kernel knows the main thread; Python before 3.13 keeps that of the parent in a fork."""
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading, "get_native_id"):
        threading.main_thread()._native_id = threading.get_native_id()  # noqa: SLF001 - there is no public way


def _draw_anew(kept: "Kept") -> None:
    """Seed the generators that a fresh process seeds by chance, unless listed modules have seeded them."""
    if kept.random_state is not None:
        sys.modules["random"].setstate(kept.random_state)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None and "numpy.random" not in kept.seeded:
        numpy_random.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None and "torch" not in kept.seeded and generator.initial_seed() != _TORCH_FIXED_SEED:
        generator.seed()


def _unfreeze_at_exit(kept: "Kept") -> None:
    """An interpreter that ends collects all it has, so that what training code left behind is closed and finalised."""
    known = "atexit" in sys.modules
    import atexit  # noqa: PLC0415 - built in

    if not known:
        del sys.modules["atexit"]
    atexit.register(kept.unfreeze)


def _from_wire(value: "Any") -> "Any":  # noqa: ANN401 - JSON
    """Bytes travel as one character each; here they become what this interpreter makes of them."""
    if isinstance(value, str):
        return os.fsdecode(value.encode("latin-1"))
    if isinstance(value, dict):
        return {_from_wire(key): _from_wire(one) for key, one in value.items()}
    return value
