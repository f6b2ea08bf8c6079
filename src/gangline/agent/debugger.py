"""A debugger in a rank, for a person at another terminal: pdb, spoken over a Unix socket next to the rank's log.

`inject.py` copies this text next to the injected `sitecustomize`, which loads it in the ranks of a run that is
debugged. It therefore imports nothing of Gangline. Each line is a JSON object:

    rank → person   {"text": output}, {"ask": true}: a command is awaited, {"stopped": why}, {"quit": true}: end the run
    person → rank   {"line": command}, {"eof": true}, {"interrupt": true}: stop at the next line

`breakpoint()`, `pdb.set_trace()` and an exception that nothing catches stop the rank until the person says otherwise.
Whoever connects last has the word; what was said while nobody listened is said again.
"""

import atexit
import json
import os
import pdb  # noqa: T100 - this is what it is for
import signal
import socket
import sys
import threading
import time
from bdb import BdbQuit
from queue import SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

__all__ = ["install", "pass_by"]

_BACKLOG_CHARS = 16_000
_QUIT_PATIENCE_S = 30.0
_PROMPT = "(Pdb) "
_EOF = "\0"
"""No line holds it."""


def install(path: str) -> None:
    """Let a person in at `path`, and stop for them; this process alone, not what it forks.

    Raises:
        OSError: the socket cannot be made.
    """
    session = _Session(path)
    debugger = _Debugger(session)
    _take_over_exceptions(debugger)
    signal.signal(signal.SIGINT, debugger.on_interrupt)
    threading.Thread(target=session.serve, name="gangline-debugger", daemon=True).start()


def pass_by() -> None:
    """Let this rank walk past breakpoints: another rank of its gang is the one that stops."""
    sys.breakpointhook = lambda *_, **__: None
    pdb.set_trace = lambda *_, **__: None


class _Session:
    """The socket, and what goes over it. One thread reads, the rank's own threads write."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self.asking = False
        self.place = ""
        """Where the rank stands while it waits, for who comes in later."""
        self._path = path
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._lock = threading.Lock()
        self._person: socket.socket | None = None
        self._backlog = ""
        self._listener = _listen(path)

    def say(self, text: str) -> None:
        with self._lock:
            self._backlog = (self._backlog + text)[-_BACKLOG_CHARS:]
        self._send({"text": text})

    def tell_stop(self, why: str) -> None:
        self._send({"stopped": why})

    def ask(self) -> str:
        """The next command; waits for as long as it takes."""
        self.asking = True
        try:
            self._send({"ask": True})
            return self._lines.get()
        finally:
            self.asking = False

    def quit(self) -> None:
        """Have the run ended; returns where nobody does so."""
        self._send({"quit": True})
        time.sleep(_QUIT_PATIENCE_S if self._person is not None else 0.0)

    def serve(self) -> None:
        """Let people in, one after the other."""
        while True:
            person, _ = self._listener.accept()
            with self._lock:
                old, self._person = self._person, person
                backlog, self._backlog = self._backlog, ""
            if old is not None:
                old.close()
            if self.asking:  # the prompt comes last; one that was said before belongs to who has left
                before = backlog.removesuffix(_PROMPT)
                place = "" if self.place in before else self.place
                self._send({"text": before + place + _PROMPT})
            elif backlog:
                self._send({"text": backlog})
            if self.asking:
                self._send({"ask": True})
            threading.Thread(target=self._read, args=(person,), name="gangline-debugger", daemon=True).start()

    def _read(self, person: socket.socket) -> None:
        try:
            with person.makefile("r", encoding="utf-8", errors="replace", newline="\n") as stream:
                for line in stream:
                    self._take(line)
        except OSError:
            pass  # they have gone; the rank waits for the next

    def _take(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if message.get("interrupt"):
            if not self.asking:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif self.asking:
            self._lines.put(_EOF if message.get("eof") else str(message.get("line", "")))

    def _send(self, message: "dict[str, Any]") -> None:
        with self._lock:
            person = self._person
        if person is None:
            return
        try:
            person.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            with self._lock:
                if self._person is person:
                    self._person = None


class _Output:
    """What pdb writes to."""

    encoding = "utf-8"

    def __init__(self, session: _Session) -> None:
        self._session = session

    def write(self, text: str) -> int:
        self._session.say(text)
        return len(text)

    def flush(self) -> None:
        """Everything has been sent."""

    def isatty(self) -> bool:
        return False


class _Input:
    """What pdb reads from."""

    encoding = "utf-8"

    def __init__(self, session: _Session) -> None:
        self._session = session

    def readline(self) -> str:
        line = self._session.ask()
        return "" if line == _EOF else line + "\n"

    def isatty(self) -> bool:
        return False


class _Debugger(pdb.Pdb):
    """pdb with another mouth and other ears."""

    def __init__(self, session: _Session) -> None:
        super().__init__(stdin=_Input(session), stdout=_Output(session), nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.session = session
        self.use_rawinput = False
        self.prompt = _PROMPT

    def stop_at(self, frame: "FrameType", why: str) -> None:
        """Stop in a frame, at its next line."""
        if os.getpid() == self.session.pid and threading.current_thread() is threading.main_thread():
            self._announce(why)
            self.set_trace(frame)

    def look_at(self, trace: "TracebackType", why: str) -> None:
        """Stop where an exception was raised."""
        if os.getpid() == self.session.pid:
            self._announce(why)
            self.reset()
            self.interaction(None, trace)

    def on_interrupt(self, _signal: int, frame: "FrameType | None") -> None:
        """The person wants to look at what the rank does now."""
        if self.session.asking or frame is None:
            raise KeyboardInterrupt
        self.stop_at(frame, "stopped here")

    def preloop(self) -> None:
        """Before the first prompt at a place."""
        super().preloop()
        self._note_place()

    def postcmd(self, stop: bool, line: str) -> bool:  # noqa: FBT001 - the signature of cmd
        """After each command: `up` and `down` move."""
        self._note_place()
        return super().postcmd(stop, line)

    def _note_place(self) -> None:
        if self.curindex < len(self.stack):
            self.session.place = f"> {self.format_stack_entry(self.stack[self.curindex], pdb.line_prefix)}\n"

    def _announce(self, why: str) -> None:
        self.session.tell_stop(why)
        self.message(f"--- {why} ---")
        os.write(2, f"gangline: this rank waits in the debugger ({why})\n".encode("utf-8", "replace"))

    def do_quit(self, arg: str) -> "bool | None":
        """End the run that is debugged."""
        self.message("quit: the run is ended")
        self.session.quit()
        super().do_quit(arg)
        return True

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - the names that pdb looks for

    def do_run(self, arg: str) -> None:  # noqa: ARG002 - the signature of pdb
        """A rank is one of a gang, and cannot begin again by itself."""
        self.error("A rank cannot be started again by itself; quit, and debug the run once more.")

    do_restart = do_run


def _take_over_exceptions(debugger: _Debugger) -> None:
    told = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: "TracebackType | None") -> None:
        told(kind, error, trace)
        _examine(debugger, error, trace)

    def stop(*_: object, **__: object) -> None:
        debugger.stop_at(sys._getframe(1), "breakpoint")  # noqa: SLF001 - where it was called

    def at_exit() -> None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None:  # a script with a hook of its own
            _examine(debugger, error, error.__traceback__)

    sys.excepthook = hook
    sys.breakpointhook = stop
    pdb.set_trace = stop
    atexit.register(at_exit)


def _examine(debugger: _Debugger, error: BaseException, trace: "TracebackType | None") -> None:
    """Once for each exception, and not for those by which a person ends things."""
    if trace is None or isinstance(error, BdbQuit | KeyboardInterrupt | SystemExit) or hasattr(error, "_gangline_seen"):
        return
    try:
        error._gangline_seen = True  # type: ignore[attr-defined] # noqa: SLF001 - a mark of ours
    except AttributeError:
        return  # an exception with slots; it is looked at once, by the hook
    debugger.look_at(trace, f"uncaught {type(error).__name__}: {error}")


def _listen(path: str) -> socket.socket:
    """A socket at a path that may be longer than the 108 bytes which the system takes."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{name}" if sys.platform == "linux" else path)
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    return listener
