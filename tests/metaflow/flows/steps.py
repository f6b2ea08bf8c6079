"""A training that counts steps and saves, and does what the test's folder says: fail, wait, end late."""

import os
import sys
import time
from pathlib import Path

from metaflow import FlowSpec, current, gang, step

import gangline

MARK = Path(os.environ.get("MARK", "/nowhere"))
ASKED = {name.partition("=")[0]: name.partition("=")[2] for name in os.environ.get("ASKED", "").split(",")}


class StepsFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.train)

    @gang(
        procs_per_node=2,
        lease_s=float(ASKED.get("lease", "40")),
        max_restarts=int(ASKED.get("restarts", "0")),
        label=f"test.folder={MARK}",
        env={"MARK": str(MARK), "ASKED": os.environ.get("ASKED", "")},
    )
    @step
    def train(self):
        rank, found = current.gang.rank, gangline.latest_checkpoint()
        begin = 0 if found is None else found.step
        print(f"rank {rank} begins at {begin}, attempt {current.gang.attempt}, retry {current.retry_count}", flush=True)
        self.begin, self.attempt, self.done, self.token = begin, current.gang.attempt, 0, os.urandom(8).hex()
        while self.done < int(ASKED.get("steps", "3")) and not gangline.should_stop():
            self.done += 1
            if (MARK / "enough").exists():
                self.done = 1_000_000  # the same on all ranks
            time.sleep(0.02)
        with gangline.checkpoint(step=begin + self.done) as folder:
            (folder / f"rank-{rank}").write_text(str(self.done))
        self.checkpoint = current.gang.checkpoint_uri
        if rank == 1 and "fail" in ASKED and (ASKED["fail"] == "always" or current.gang.attempt < int(ASKED["fail"])):
            time.sleep(0.5)  # rank 0 is done by then
            raise ValueError(f"rank 1 had trouble in attempt {current.gang.attempt}")
        self.next(self.check)

    @step
    def check(self):
        if (MARK / "check-fails").exists():
            sys.exit("not good enough")
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    StepsFlow()
