"""The same step as Metaflow itself runs it on two processes: num_parallel, which it starts at once on this machine."""

import os

from metaflow import FlowSpec, current, parallel, step


class ParallelFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @parallel
    @step
    def train(self):
        from meet import meet

        one = current.parallel
        told = {"RANK": one.node_index, "WORLD_SIZE": one.num_nodes, "MASTER_ADDR": one.main_ip}
        os.environ.update({name: str(value) for name, value in told.items()})
        self.sum = meet()
        self.next(self.join)

    @step
    def join(self, inputs):
        assert [one.sum for one in inputs] == [3.0, 3.0]
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    ParallelFlow()
