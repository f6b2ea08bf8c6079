"""A gang that saves, on a volume of its container, and does what its environment says: fail, or go on for ever."""

import os
import time

from metaflow import FlowSpec, current, gang, project, retry, step

import gangline


@project(name="pets")
class KeptFlow(FlowSpec):
    @retry(times=1, minutes_between_retries=0)
    @gang(procs_per_node=2, volume="VOLUME", lease_s=60)
    @step
    def start(self):
        rank, found = current.gang.rank, gangline.latest_checkpoint()
        begin = 0 if found is None else found.step
        print(f"rank {rank} begins at {begin}, attempt {current.gang.attempt}, retry {current.retry_count}")
        self.begin, self.trouble, done = begin, None, 0
        while done < int(os.environ.get("STEPS", "3")) and not gangline.should_stop():
            done += 1
            time.sleep(0.02)
        with gangline.checkpoint(step=begin + done) as folder:
            (folder / f"rank-{rank}").write_text(str(done))
        if rank == 1 and current.gang.attempt < int(os.environ.get("FAILS", "0")):
            raise ValueError(f"rank 1 had trouble in attempt {current.gang.attempt}")
        self.next(self.end)

    @step
    def end(self):
        print(f"began at {getattr(self, 'begin', None)}, trouble: {self.trouble}")


if __name__ == "__main__":
    KeptFlow()
