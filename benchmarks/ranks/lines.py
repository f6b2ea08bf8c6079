"""Print LINES lines a second, each with the moment of its writing, until OUT/stop exists: `lines.py OUT LINES`."""

import os
import sys
import time

stop, rank, per_turn = os.path.join(sys.argv[1], "stop"), os.environ["RANK"], int(sys.argv[2]) // 20
number = 0
due = time.monotonic()
while not os.path.exists(stop):
    now = time.time()
    lines = [f"{now:.3f} {rank} {number + n} loss 0.123456 lr 3.0e-4 tokens/s 123456\n" for n in range(per_turn)]
    os.write(1, "".join(lines).encode())
    number += per_turn
    due = max(due + 0.05, time.monotonic() - 1.0)
    time.sleep(max(0.0, due - time.monotonic()))
with open(os.path.join(sys.argv[1], f"part-{rank}"), "w") as file:
    file.write(str(number))
os.rename(os.path.join(sys.argv[1], f"part-{rank}"), os.path.join(sys.argv[1], f"rank-{rank}"))
