"""Put in front of a Python rank's path by exec start: it reports the exception that ends the rank, and then is not there.

The script sees the `sys.path`, `PYTHONPATH` and `sitecustomize` that it would see without us, and what the script starts in
its turn gets its environment without us, too. Runs in whatever interpreter the user chose, before anything else: it imports
nothing but what is loaded anyway or built in, and never raises.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_VARIABLE = "GANGLINE_INJECTED"
_KEYS = ("pythonpath", "bundle", "error", "stacks", "signal", "descriptor")
_SEPARATOR = "\x1f"


def _read_settings() -> dict[str, str]:
    """What `inject.py` wrote into the environment; empty where it is not there or of another version."""
    fields = os.environ.pop(_VARIABLE, "").split(_SEPARATOR)
    return dict(zip(_KEYS, fields)) if len(fields) == len(_KEYS) else {}  # noqa: B905 - lengths were compared


def _leave_path(settings: dict[str, str]) -> None:
    """Undo PYTHONPATH, for this interpreter and for what it starts."""
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _FOLDER]
    if rest or settings.get("pythonpath") == "empty":
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)
    if settings:
        sys.path.append(settings["bundle"])


def _report_failure(error_path: str) -> None:
    """At the exit of this process, describe what ended it. What is printed, and by whom, does not change."""
    rank = os.getpid()
    leaving: list[tuple[object, FrameType]] = []
    exit_by = sys.exit

    def exit_and_tell(status: object = None, /) -> None:
        """Exit the interpreter by raising SystemExit(status)."""
        if status is not None and not isinstance(status, int) and os.getpid() == rank:
            leaving[:] = [(status, sys._getframe(1))]  # noqa: SLF001 - where it was called
        exit_by(status)  # type: ignore[arg-type]

    def at_exit() -> None:
        # The interpreter keeps the exception that it printed last. A SystemExit is not printed: only its call is known.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if os.getpid() != rank or (error is None and not leaving):
            return
        write = _load("failure.py")["write_failure"]
        if error is None:
            error = SystemExit(leaving[0][0])
        write(error_path, error, error.__traceback__)

    sys.exit = exit_and_tell  # type: ignore[assignment]
    _borrow("atexit").register(at_exit)


def _register_stacks(settings: dict[str, str]) -> None:
    """Dump the stacks of all threads into the rank's file on a signal; its descriptor stays out of the way."""
    opened = os.open(settings["stacks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    descriptor = os.dup2(opened, int(settings["descriptor"]), inheritable=False)
    os.close(opened)
    _borrow("faulthandler").register(int(settings["signal"]), file=descriptor, all_threads=True, chain=False)


def _borrow(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - modules differ in what they hold
    """A built-in module, without leaving it behind in `sys.modules`."""
    known = name in sys.modules
    module = __import__(name)
    if not known:
        del sys.modules[name]
    return module


def _load(name: str) -> dict[str, object]:
    """The globals of a file next to this one."""
    path = os.path.join(_FOLDER, name)
    with open(path, encoding="utf-8") as file:
        namespace: dict[str, object] = {"__name__": "gangline_failure", "__file__": path}
        exec(compile(file.read(), path, "exec"), namespace)  # noqa: S102 - our own file
    return namespace


def _install() -> None:
    settings = _read_settings()
    _leave_path(settings)
    if not settings:
        return
    _report_failure(settings["error"])
    try:
        _register_stacks(settings)
    except (OSError, ValueError, RuntimeError, AttributeError) as trouble:  # no such signal here, a low limit of files
        os.write(2, f"gangline: no stacks can be taken of this rank: {trouble}\n".encode("utf-8", "replace"))


if __name__ == "sitecustomize":
    _install()
    # The environment's own: this file has left the path. Where there is none, the import fails as it would without us.
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401
