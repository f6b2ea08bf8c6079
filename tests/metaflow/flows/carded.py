"""A training whose every word is hostile to a page, and that fails as often as it is asked to."""

import os
import time
from pathlib import Path

from metaflow import FlowSpec, current, gang, step

import gangline

EVIL = "<img src=x onerror=alert(1)>"
MARK = Path(os.environ.get("MARK", "/nowhere"))


class CardedFlow(FlowSpec):
    @gang(
        nodes=2,
        procs_per_node=1,
        max_restarts=1,
        run_name=EVIL,
        label=f"test.folder={MARK}",
        env={"MARK": str(MARK)},
        **({"card": False} if os.environ.get("NO_CARD") else {}),
    )
    @step
    def start(self):
        print(f"{EVIL} <script>alert(2)</script> from {current.gang.rank}", flush=True)
        for number in range(1, 21):
            gangline.log({"loss": 1 / number, EVIL: number, "tokens_per_s": 100.0 + number}, step=number)
            gangline.progress(number, 20)
        while not (MARK / "go-on").exists():
            time.sleep(0.05)
        if current.gang.attempt < len(list(MARK.glob("fail-*"))) and current.gang.rank == 1:
            raise ValueError(f"{EVIL} in attempt {current.gang.attempt}")
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    CardedFlow()
