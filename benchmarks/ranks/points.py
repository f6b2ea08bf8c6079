"""Log a million points of one metric: `points.py COUNT`."""

import math
import sys

import gangline

for step in range(int(sys.argv[1])):
    gangline.log({"wave": math.sin(step / 1e4)}, step=step)
