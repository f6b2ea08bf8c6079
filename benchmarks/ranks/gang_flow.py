"""A step of two ranks with @gang, and lines whose time is told."""

import os
import time

from metaflow import FlowSpec, gang, step


class GangFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.train)

    @gang(procs_per_node=2, card=False)
    @step
    def train(self):
        from meet import meet

        self.sum = meet()
        for _ in range(int(os.environ.get("METAFLOW_BENCH_LINES", "0"))):
            print(f"printed {time.time():.6f} by {os.environ['RANK']}", flush=True)
            time.sleep(0.1)
        self.next(self.end)

    @step
    def end(self):
        assert self.sum == 3.0


if __name__ == "__main__":
    GangFlow()
