"""`python -m gangline.agent`, and what the zipapp runs. Standard library only."""

from __future__ import annotations

import sys

from gangline.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
