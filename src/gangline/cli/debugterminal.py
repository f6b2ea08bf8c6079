"""A terminal for the debugger of one rank, with the output of all ranks around it.

The main thread waits for the person; a second one prints what the ranks write, a third what the debugger says.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from gangline.cli.describe import exit_code_of, is_over, num_ranks
from gangline.cli.follow import make_printer, say_end
from gangline.cli.prose import fold_message
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import visible
from gangline.client.debugger import DebugLine, open_debug_line
from gangline.domain.errors import GanglineError
from gangline.rundir.layout import RunDir
from gangline.wire.views import RunDetail, RunSummary

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["DebugTerminal"]

_LOOK_S = 0.1
_QUIET_S = 0.3
"""What was written before the debugger stopped may still be printed for this long; then the prompt is left in peace."""
_TWICE_S = 3.0
"""Two Ctrl-C within this time end the run."""

_OTHERS_WAIT = (
    "The other ranks wait for it as long as their process group allows: 30 minutes with gloo, 10 with NCCL, unless "
    "the script sets another timeout."
)


class DebugTerminal:
    """One person at one run that is debugged."""

    def __init__(self, client: Client, run: RunDetail, *, is_terminal: bool) -> None:
        self._client = client
        self._run = run
        self._is_terminal = is_terminal
        self._asks: SimpleQueue[str | None] = SimpleQueue()
        """Prompts at which a command is awaited; None: the rank, or the run, has ended."""
        self._asking = False
        self._asked_at = 0.0
        self._settled = 0.0
        """Before this moment, what was written before the rank stopped may still have to be printed."""
        self._line: DebugLine | None = None
        self._ended: RunSummary | None = None
        self._quit = False
        self._reading = False

    def run(self, *, after: int | None) -> int:
        """Attend until the run is over.

        Args:
            after: `seq` of the last event that was told; None: the debugger has been there before, print nothing old.
        Returns:
            The run's exit code.
        """
        rank = self._run["spec"]["pdb_rank"]
        say(f"Rank {rank} is debugged here. Ctrl-C: stop it at its next line; twice: end the run.", err=True)
        if num_ranks(self._run) > 1:
            say(_OTHERS_WAIT, err=True)
        for work in (lambda: self._print_logs(after), self._listen):
            threading.Thread(target=work, daemon=True).start()
        if self._is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - lines can be edited, and come again
        interrupted = 0.0
        while self._ended is None:
            try:
                self._attend()
            except KeyboardInterrupt:  # noqa: PERF203 - each Ctrl-C means something else
                if self._ended is not None:
                    break
                interrupted = self._interrupt(interrupted)
        ended = self._client.run(self._run["id"])
        say(say_end(ended, Terminal.from_stream(sys.stderr)), err=True)
        return exit_code_of(ended)

    def _attend(self) -> None:
        """Answer one prompt; short waits, so that the end of the run is seen."""
        try:
            prompt = self._asks.get(timeout=_LOOK_S)
        except Empty:
            return
        line = self._line
        if prompt is None or line is None:
            return
        try:
            time.sleep(max(0.0, self._settled - time.monotonic()))
            self._reading = True
            text = input(prompt)
        except EOFError:
            say("")
            self._asking = False
            line.end_of_input()
        except KeyboardInterrupt:  # what was typed is dropped, as at any prompt
            say("")
            self._asks.put(prompt)
        else:
            self._asking = False  # first: the next prompt may be there before the command has left
            line.command(text)
        finally:
            self._reading = False

    def _interrupt(self, before: float) -> float:
        """Ctrl-C while the rank runs: it stops at its next line; the second one ends all."""
        now = time.monotonic()
        say("")
        line = self._line
        if self._asking:
            return 0.0
        if line is None or now - before < _TWICE_S:
            self._end()
        else:
            line.interrupt()
            say("asked the rank to stop at its next line; Ctrl-C once more ends the run", err=True)
        return now

    def _end(self) -> None:
        say(f"{self._run['id']} is being ended.", err=True)
        with suppress(GanglineError):
            self._client.stop(self._run["id"], grace_s=1.0)

    # The debugger's side

    def _listen(self) -> None:
        """Find the debugger of the rank, and pass on what it says, until there is none any more."""
        run_dir, rank = RunDir(Path(self._run["run_dir"])), self._run["spec"]["pdb_rank"]
        while self._ended is None:
            begun = run_dir.attempts()
            line = open_debug_line(begun[-1].pdb(rank)) if begun else None
            if line is None:
                time.sleep(_LOOK_S)
                continue
            self._line = line
            self._pass_on(line)
            self._line = None
            line.close()
            if self._quit:
                self._end()
                return

    def _pass_on(self, line: DebugLine) -> None:
        partial = ""
        for message in line.messages():
            if "stopped" in message:
                self._settled = time.monotonic() + _QUIET_S
            elif "text" in message:
                whole, newline, partial = (partial + message["text"]).rpartition("\n")
                if newline:
                    self._write(whole + newline)
            elif message.get("quit"):
                self._quit = True
                return
            elif message.get("ask"):
                self._asking, self._asked_at = True, time.monotonic()
                self._asks.put(partial)
                partial = ""
        if partial:
            self._write(partial)

    # The ranks' side

    def _print_logs(self, after: int | None) -> None:
        printer = make_printer(Terminal.from_stream(), labelled=True)
        query: dict[str, Any] = {"tail": 0} if after is None else {"attempt": 0, "after": after}
        try:
            for item in self._client.follow(self._run["id"], **query):
                self._wait_for_quiet()
                if "text" in item:
                    printer.feed(item)  # type: ignore[arg-type]
                elif "event" in item and item["event"]["kind"] == "warning":
                    printer.break_line()
                    say(f"gangline {fold_message(item['event']['message'])}", err=True)
            printer.finish()
        finally:
            self._find_end()

    def _wait_for_quiet(self) -> None:
        while self._asking and time.monotonic() - self._asked_at > _QUIET_S and not self._is_over():
            time.sleep(_LOOK_S)

    def _is_over(self) -> bool:
        return self._line is None

    def _find_end(self) -> None:
        """The run is over; a person at the prompt is called away from it."""
        summary = self._client.wait(self._run["id"], timeout_s=60.0)
        if is_over(summary):
            self._ended = summary
            if self._reading:
                os.kill(os.getpid(), signal.SIGINT)

    def _write(self, text: str) -> None:
        sys.stdout.write(visible(text, multiline=True))
        sys.stdout.flush()
