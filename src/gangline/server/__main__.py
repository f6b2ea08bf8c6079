"""`python -m gangline.server`: the embedded server of a state folder."""

from __future__ import annotations

import sys

from gangline.server.main import main

if __name__ == "__main__":
    sys.exit(main())
