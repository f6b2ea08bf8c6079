"""Where a follow stream stands, so that it can go on over a new connection without a gap or a repetition."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.client.http import httpx
from gangline.domain.errors import ServerUnreachable

__all__ = ["Follow"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 3.0
_MAX_SILENT_TRIES = 20
"""With the pauses between them: the server may be away for about 45 s."""


@dataclass(slots=True, kw_only=True)
class Follow:
    """What has been seen so far."""

    ranks: Sequence[int] | None
    attempt: int | None
    begin: Mapping[str, Any]
    """Where ranks without an offset begin in the first attempt: `tail`, `since`."""
    after: int
    offsets: dict[int, int] = field(default_factory=dict)
    """Next byte of each rank's log in `attempt`."""
    _silent: int = 0
    """Broken streams in a row, without one line between them."""

    def query(self) -> dict[str, Any]:
        """The parameters that continue from here."""
        return {
            "ranks": None if self.ranks is None else ",".join(map(str, self.ranks)),
            "attempt": self.attempt,
            **self.begin,
            "after": self.after,
            "offsets": ",".join(f"{rank}:{offset}" for rank, offset in self.offsets.items()) or None,
        }

    def items(
        self,
        lines: Callable[[Mapping[str, Any]], Iterator[bytes]],
        recover: Callable[[httpx.TransportError], None],
    ) -> Iterator[dict[str, Any]]:
        """Items until the run is over.

        Args:
            lines: opens a stream.
            recover: finds the server again after a stream broke; raises when it can't.
        Raises:
            ServerUnreachable: the server stayed away.
        """
        self._silent = 0
        while True:
            try:
                for item in self._parsed(lines(self.query())):
                    yield item
                    if "end" in item:
                        return
                error: httpx.TransportError = httpx.RemoteProtocolError("The stream ended before the run did")
            except httpx.TransportError as broken:
                error = broken
            self._pause(error)
            recover(error)

    def _parsed(self, lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        for line in lines:
            self._silent = 0
            if line.strip():  # empty lines only say that the server lives
                item: dict[str, Any] = json.loads(line)
                self._note(item)
                yield item

    def _pause(self, error: httpx.TransportError) -> None:
        """Nothing after the first break, then longer and longer."""
        if self._silent >= _MAX_SILENT_TRIES:
            raise ServerUnreachable("The server went away and did not come back", why=str(error)) from error
        if self._silent:
            time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._silent))
        self._silent += 1

    def _note(self, item: Mapping[str, Any]) -> None:
        if "event" in item:
            self.after = item["event"]["seq"]
        elif "text" in item:
            if self.attempt is not None and item["attempt"] > self.attempt:
                self.offsets, self.begin = {}, {}
            self.attempt = item["attempt"]
            self.offsets[item["rank"]] = item["next_offset"]
