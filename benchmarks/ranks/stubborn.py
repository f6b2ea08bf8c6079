"""Ignore SIGTERM, and say in OUT that this rank is up: `stubborn.py OUT`."""

import os
import signal
import sys
import time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
out = Path(sys.argv[1])
part = out / f"part-{os.environ['RANK']}"
part.write_text(str(os.getpid()))
part.rename(out / f"up-{os.environ['RANK']}")
time.sleep(600)
