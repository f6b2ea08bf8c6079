"""A step that has a Ray cluster for itself, whose driver it is: it ends as it is asked to."""

import os
import subprocess
import time

from metaflow import FlowSpec, current, gang, step

NODES = int(os.environ.get("NODES", "1"))
END = os.environ.get("END", "")


class TunedFlow(FlowSpec):
    @step
    def start(self):
        self.lines = ["cats", "dogs"]
        self.next(self.tune)

    @gang(
        strategy="ray",
        nodes=NODES,
        max_infra_restarts=0 if END else 3,
        lease_s=10,
        label=f"test.folder={os.environ.get('MARK')}",
        env={"END": END, **({} if NODES > 1 else {"RAY_INCLUDE_DASHBOARD": "0"})},
    )
    @step
    def tune(self):
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        import ray  # noqa: PLC0415 - as flows do, where the step alone needs it

        ray.init()

        @ray.remote
        def try_one(line):
            return f"{line} on {ray.get_runtime_context().get_node_id()}"

        @ray.remote(num_cpus=0)
        class Holder:
            def start(self):
                return subprocess.Popen(["sleep", "9999"], start_new_session=True).pid

        self.cluster = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
        places = [NodeAffinitySchedulingStrategy(node_id=node, soft=False) for node in self.cluster]
        tries = [try_one.options(scheduling_strategy=place).remote(self.lines[-1]) for place in places]
        self.tried = ray.get(tries)
        holder = Holder.remote()
        print("child", ray.get(holder.start.remote()), flush=True)
        one = current.gang
        self.numbers = (one.rank, one.world_size, one.node, one.num_nodes)
        if END == "fail":
            raise ValueError("no trial was good")
        time.sleep(3600 if END else 0)
        self.next(self.end)

    @step
    def end(self):
        print("used", len(self.cluster), "nodes")


if __name__ == "__main__":
    TunedFlow()
