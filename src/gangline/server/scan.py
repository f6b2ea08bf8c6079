"""Finds lines by a regular expression where ripgrep is not installed: a program of its own, so that it can be ended.

`python scan.py [-i] [-F] -m COUNT -e PATTERN FILE …` prints, for each line that matches, `FILE NUL column:offset:` as
ripgrep does. Python's expressions can take for ever (`(a+)+$`); whoever started this ends it then.

Standard library only, and nothing of Gangline.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import BinaryIO

_LONGEST_LINE = 1 << 20
"""Longer lines are searched in pieces."""


def main() -> int:
    """Search, and say as grep does whether there was anything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", dest="ignore_case", action="store_true")
    parser.add_argument("-F", dest="fixed", action="store_true")
    parser.add_argument("-m", dest="most", type=int)
    parser.add_argument("-e", dest="pattern", required=True)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    pattern = options.pattern.encode("utf-8", "surrogateescape")
    flags = re.IGNORECASE if options.ignore_case else 0
    try:
        regex = re.compile(re.escape(pattern) if options.fixed else pattern, flags)
    except re.error as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    found = False
    for name in options.files:
        if name == "-":
            found = _scan(sys.stdin.buffer, "<stdin>", regex, options.most) or found
            continue
        with Path(name).open("rb") as file:
            found = _scan(file, name, regex, options.most) or found
    return 0 if found else 1


def _scan(file: BinaryIO, name: str, regex: re.Pattern[bytes], most: int) -> bool:
    offset = begin = count = 0
    for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
        match = regex.search(line[:-1] if line.endswith(b"\n") else line)
        if match is not None and count < most:
            column = offset + match.start() - begin + 1
            sys.stdout.buffer.write(b"%s\0%d:%d:\n" % (name.encode("utf-8", "surrogateescape"), column, begin))
            count += 1
        offset += len(line)
        if line.endswith(b"\n"):
            begin = offset
    return count > 0


if __name__ == "__main__":
    sys.exit(main())
