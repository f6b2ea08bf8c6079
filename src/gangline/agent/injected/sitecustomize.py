"""Put in front of a Python rank's path; it does its work before the script begins, and then is not there.

The script sees the `sys.path`, `PYTHONPATH` and `sitecustomize` that it would see without us, and what it starts in
its turn gets its environment without us, too. Runs in whatever interpreter the user chose: it imports nothing but
what is loaded anyway or built in.

Four ways to be started, told by the environment (`inject.py`):
    exec    this process is a rank: report what ends it, and dump its stacks on a signal
    probe   show that this file is loaded at all, by executing the interpreter again as
    warm    the warm helper: an interpreter that was asked to run the script and waits here, before its first line. It
            imports, and forks on request; each fork then goes on as that interpreter would: it runs the script.
    beside  this process is no rank, a person has started it beside one: `import gangline` works, and that is all
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    _Handler = Callable[[int, FrameType | None], object] | int

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_VARIABLE = "GANGLINE_INJECTED"
_SEPARATOR = "\x1f"
_MOST_FRAMES = 30


def _read_settings() -> "dict[str, str]":
    """What `inject.py` wrote into the environment; empty where it is not there."""
    fields = os.environ.pop(_VARIABLE, "").split(_SEPARATOR)
    return dict(field.split("=", 1) for field in fields) if fields != [""] else {}


def _leave_path(settings: "dict[str, str]") -> None:
    """Undo PYTHONPATH, for this interpreter and for what it starts."""
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _FOLDER]
    if rest or settings.get("pythonpath") == "empty":
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)


def _offer_gangline(bundle: str, offered: str) -> None:
    """Let `import gangline` work where it is not installed."""
    if bundle not in sys.path:
        sys.path.append(offered)


def _find_environments_own() -> "BaseException | None":
    """Run the `sitecustomize` that this file stands in front of; what its import raises, also when there is none."""
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415 - this file has left the path
    except BaseException as error:  # noqa: BLE001 - raised again in the end
        return error
    return None


def _install(settings: "dict[str, str]") -> None:
    mode, bundle, offered = settings["mode"], settings["bundle"], settings["offered"]
    if mode == "warm":
        settings = _serve(settings)
    _offer_gangline(bundle, offered)
    if mode == "beside":
        return
    _report_failure(settings["error"])
    if "pdb" in settings:
        _let_debug(settings["pdb"])
    try:
        _register_stacks(settings)
    except (OSError, ValueError, RuntimeError, AttributeError) as trouble:  # no such signal here, a low limit of files
        os.write(2, f"gangline: no stacks can be taken of this rank: {trouble}\n".encode("utf-8", "replace"))


def _serve(settings: "dict[str, str]") -> "dict[str, str]":
    """Be the helper; returns in ranks. Whatever goes wrong must not end in the helper itself running the script."""
    try:
        become = _load("warmchild.py")["become"]
        return _load("warmhelper.py")["serve"](settings, become)  # type: ignore[operator,no-any-return]
    except BaseException as error:  # noqa: BLE001 - told, and the end of this process
        os.write(2, f"gangline: warm start failed: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
        os._exit(125)


def _execute_helper(settings: "dict[str, str]") -> None:
    """Start the script's interpreter: this file was loaded, so it will be loaded again, and hold the script back."""
    signal = _borrow("_signal")
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    argv = sys.orig_argv[3:]
    settings["mode"] = "warm"
    os.environ[_VARIABLE] = _SEPARATOR.join(f"{key}={value}" for key, value in settings.items())
    os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - no shell is wanted


def _report_failure(error_path: str) -> None:
    """Describe what ends this process, as soon as it is known. What is printed, and by whom, does not change."""
    rank = os.getpid()
    leaving: "list[tuple[object, list[tuple[str, int, str]]]]" = []  # noqa: UP037 - not evaluated
    told: "list[int]" = []  # noqa: UP037 - not evaluated; no reference, as hooks outlive what scripts leave behind
    exit_by, exits, ident = sys.exit, _borrow("atexit"), _borrow("_thread").get_ident
    thread = ident()

    def exit_and_tell(status: object = None, /) -> None:
        """Exit the interpreter by raising SystemExit(status)."""
        if os.getpid() == rank and ident() == thread:
            leaving[:] = [(status, _find_callers() if status else [])]
            exits.unregister(at_exit)
            exits.register(at_exit)
            _before_threads(tell_all if status else tell_alone)
        exit_by(status)  # type: ignore[arg-type]

    def tell() -> None:
        # The interpreter keeps the exception that it printed last. A SystemExit is not printed: only its call is known.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        says = bool(leaving) and not isinstance(leaving[0][0], int | None)
        if os.getpid() == rank and (error is not None or says) and id(error) not in told:
            write = _load("failure.py")["write_failure"]
            write(error_path, *((error,) if error is not None else (SystemExit(leaving[0][0]), leaving[0][1])))  # type: ignore[operator]
            told.append(id(error))

    def tell_all() -> None:
        _undisturbed(tell)
        if os.getpid() == rank and not told:
            told.append(-1)
            _tell_left(error_path, *(leaving[0] if leaving else ("", [])))

    def tell_alone() -> None:
        if not _other_threads():  # they may be what this process is about
            tell_all()

    def at_exit() -> None:
        tell_all()
        leaving.clear()
        _leave_mpi(rank if any(one > 0 for one in told) else 0)

    sys.exit = exit_and_tell  # type: ignore[assignment]
    exits.register(at_exit)
    _before_threads(tell_alone)
    _at_uncaught(tell)


def _undisturbed(tell: "Callable[[], None]") -> None:
    """Call `tell` while nothing of the script's is called as a process ends that it has started.

    Torch's handler raises what it is told of a dead data loader worker, in the middle of whatever runs: here, too,
    where the interpreter would take it for a wish to pass over the exception, and say nothing of it at all.
    """
    handler = _set_child_handler(0)
    try:
        tell()
    finally:
        if handler is not None:
            _set_child_handler(handler)


def _set_child_handler(wanted: "_Handler") -> "_Handler | None":
    """What was called so far; None: nothing is changed. 0 stands for nothing to call."""
    signals = sys.modules.get("signal")
    if signals is None or not (wanted or callable(signals.getsignal(signals.SIGCHLD))):
        return None
    try:
        return signals.signal(signals.SIGCHLD, wanted or signals.SIG_DFL)  # type: ignore[no-any-return]
    except ValueError:  # not in the main thread: handlers are not called there
        return None


def _before_threads(tell: "Callable[[], None]") -> None:
    """Threads that go on, and what libraries do at the end, may take longer than the other ranks have patience."""
    register = getattr(sys.modules.get("threading"), "_register_atexit", None)
    if register is not None:
        try:  # noqa: SIM105 - contextlib would be imported for it
            register(tell)
        except RuntimeError:  # the interpreter is ending already
            pass


def _other_threads() -> bool:
    """Whether the interpreter waits for threads before it ends."""
    threading = sys.modules["threading"]
    return any(not one.daemon and one is not threading.main_thread() for one in threading.enumerate())


def _find_callers() -> "list[tuple[str, int, str]]":
    """Who called `sys.exit`: file, line, function; innermost first. No frame is kept: each keeps its variables."""
    frame: "FrameType | None" = sys._getframe(2)  # noqa: SLF001, UP037 - no `traceback`: scripts have not imported it
    found: "list[tuple[str, int, str]]" = []  # noqa: UP037 - not evaluated
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _tell_left(error_path: str, status: object, callers: "list[tuple[str, int, str]]") -> None:
    """Note that the interpreter begins to end, which may take long: others may lose this rank before its end is seen.

    Args:
        status: what `sys.exit` was given; "": it was not called, so that the code is not known.
    """
    try:
        write = _load("failure.py")["write_left"]
        write(error_path.removesuffix(".error.json") + ".left.json", status, callers)  # type: ignore[operator]
    except OSError:  # the bundle or the run's folder is gone: it leaves as it would without us
        pass


def _leave_mpi(rank: int) -> None:
    """End a rank that has failed: MPI would first wait for ranks that wait for this one."""
    if os.getpid() != rank or "PMIX_NAMESPACE" not in os.environ:
        return
    try:  # noqa: SIM105 - contextlib would be imported for it
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # closed by the script, or none
        pass
    os._exit(1)


def _at_uncaught(tell: "Callable[[], None]") -> None:
    """Call `tell` once an exception has left the script: before its traceback is printed, threads end, `atexit` runs.

    An audit hook is told so, which no script can see. It is called at each of thousands of other events, also where
    one more Python frame would be too many; so it is a look-up in C. Only the event's own name, by its hash, gets as
    far as a comparison, and that is ours.
    """
    main = _borrow("_thread")
    thread = main.get_ident()

    class Uncaught(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, event: object) -> bool:
            # Below code that goes on, as below an extension that prints an error, there is another frame.
            is_last = sys._getframe().f_back is None and main.get_ident() == thread
            if is_last and str.__eq__(self, event) is True:
                _undisturbed(tell)
            return False

    sys.addaudithook({Uncaught("sys.excepthook"): None}.get)  # type: ignore[arg-type]


def _let_debug(path: str) -> None:
    """In a run that is debugged: stop for a person at this rank, or not at all."""
    functions = _load("debugger.py")
    try:
        functions["pass_by"]() if path == "-" else functions["install"](path)  # type: ignore[operator]
    except OSError as trouble:
        os.write(2, f"gangline: no debugger can be reached in this rank: {trouble}\n".encode("utf-8", "replace"))


def _register_stacks(settings: "dict[str, str]") -> None:
    """Dump the stacks of all threads into the rank's file on a signal; its descriptor stays out of the way.

    So it does where compiled code crashes, unless the interpreter was told to dump that into the log, or
    PYTHONFAULTHANDLER is set to nothing. A script that turns `faulthandler` on or off has its way.
    """
    opened = os.open(settings["stacks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    descriptor = os.dup2(opened, int(settings["descriptor"]), inheritable=False)
    os.close(opened)
    handler = _borrow("faulthandler")
    handler.register(int(settings["signal"]), file=descriptor, all_threads=True, chain=False)
    if "PYTHONFAULTHANDLER" not in os.environ and not handler.is_enabled():
        handler.enable(file=descriptor, all_threads=True)


def _borrow(name: str) -> "ModuleType":
    """A built-in module, without leaving it behind in `sys.modules`."""
    known = name in sys.modules
    module = __import__(name)
    if not known:
        del sys.modules[name]
    return module


def _load(name: str) -> "dict[str, object]":
    """The globals of a file next to this one."""
    path = os.path.join(_FOLDER, name)
    namespace: "dict[str, object]" = {"__name__": name, "__file__": path}  # noqa: UP037 - not evaluated
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), namespace)  # noqa: S102 - our own file
    return namespace


if __name__ == "sitecustomize":
    _settings = _read_settings()
    # An interpreter older than ours runs the script by exec, and is left alone otherwise.
    _serves = sys.version_info >= (3, 10)
    if _serves and _settings.get("mode") == "probe":
        _execute_helper(_settings)
    _leave_path(_settings)
    _error = _find_environments_own()
    if _serves and _settings:
        _install(_settings)
    if _error is not None:
        raise _error
