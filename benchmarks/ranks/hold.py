"""Note when this process ran, then stay until OUT/stop exists: `hold.py OUT`."""

import os
import sys
import time

name = os.environ["RANK"]
part = os.path.join(sys.argv[1], f"part-{name}")
with open(part, "w") as file:
    file.write(str(time.time()))
os.rename(part, os.path.join(sys.argv[1], f"rank-{name}"))
while not os.path.exists(os.path.join(sys.argv[1], "stop")):
    time.sleep(0.2)
