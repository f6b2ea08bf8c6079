"""httpx without its own command line: importing that (rich, pygments) would take as long as all the rest of it.

Whoever imports httpx before us keeps what they have; whoever does after us finds that `httpx.main` says it is missing.
"""

from __future__ import annotations

import sys

_COMMAND_LINE = "httpx._main"

if "httpx" in sys.modules:
    import httpx
else:
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]  # then its import fails, as httpx expects
    try:
        import httpx
    finally:
        del sys.modules[_COMMAND_LINE]

__all__ = ["httpx"]
