"""Note when this process ran, and nothing else: `plain.py OUT NAME?` (the name defaults to the rank)."""

import os
import sys
import time

name = sys.argv[2] if len(sys.argv) > 2 else os.environ["RANK"]
part = os.path.join(sys.argv[1], f"part-{name}")
with open(part, "w") as file:
    file.write(str(time.time()))
os.rename(part, os.path.join(sys.argv[1], f"rank-{name}"))
