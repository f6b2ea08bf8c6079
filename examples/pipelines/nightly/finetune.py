"""Every night: prepare data, fine-tune as a gang, freeze the model, evaluate it on each set, promote it when all pass.

python finetune.py run                          # from nothing
python finetune.py run --base prod-ready        # from the newest model that was promoted
python finetune.py run --crash types            # a broken evaluation: the others are kept, nothing is promoted
python finetune.py resume                       # where it failed; if that was in the training, from its checkpoint
"""

import hashlib

import torch
import torch.distributed as dist
from english import SETS, Model, bits_per_byte, draw, pack, prepare, unpack, version_of
from metaflow import Flow, FlowSpec, Parameter, Run, catch, current, gang, project, retry, schedule, step
from metaflow.exception import MetaflowException
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gangline

PROD_READY = "prod-ready"


class NotPromotedError(MetaflowException):
    headline = "Not promoted"


@schedule(daily=True)
@project(name="english")
class FineTuneFlow(FlowSpec):
    steps = Parameter("steps", help="Steps of training.", default=300)
    most_bits = Parameter("most-bits", help="What a set may cost at most, in bits a byte.", default=4.0)
    base = Parameter("base", help="none, or prod-ready: the newest model that was promoted.", default="none")
    crash = Parameter("crash", help="A set whose evaluation is made to crash, to see what follows.", default="none")

    @step
    def start(self):
        self.texts = prepare()
        self.data_version = version_of(self.texts)
        self.weights = self.find_base()
        Run(f"{current.flow_name}/{current.run_id}").add_tag(f"data:english@{self.data_version}")
        self.next(self.train)

    @retry(times=1, minutes_between_retries=0)  # another run of the gang, should all restarts of the first be used up
    @gang(nodes=2, procs_per_node=2, max_restarts=3, hang_timeout_s=300)
    @step
    def train(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        model = Model() if self.weights is None else unpack(self.weights)
        self.final_step = self.fit(model)
        dist.destroy_process_group()
        self.weights = pack(model)
        self.gangline_run, self.checkpoint = current.gang.run_id, current.gang.checkpoint_uri
        self.next(self.freeze)

    @step
    def freeze(self):
        """From here on the model has a name of its own: what is evaluated is what is promoted."""
        self.model = {
            "sha256": hashlib.sha256(self.weights).hexdigest(),
            "data_version": self.data_version,
            "trained_by": self.gangline_run,
            "steps": self.final_step,
        }
        self.sets = list(SETS)
        self.next(self.evaluate, foreach="sets")

    @catch(var="trouble")  # one evaluation that crashes takes none of the others with it
    @retry(times=1, minutes_between_retries=0)
    @step
    def evaluate(self):
        self.data_set, self.bits = self.input, None
        if self.crash == self.data_set:
            raise RuntimeError(f"the evaluation of {self.data_set} was asked to crash")
        self.bits = bits_per_byte(unpack(self.weights), self.texts[self.data_set])
        self.next(self.judge)

    @step
    def judge(self, inputs):
        self.merge_artifacts(inputs, include=["model", "weights"])
        self.scores = {one.data_set: one.bits for one in inputs if one.trouble is None}
        self.troubles = [
            *(f"{one.data_set} crashed ({one.trouble.exception})" for one in inputs if one.trouble is not None),
            *(
                f"{name} costs {bits:.2f} bits a byte, {self.most_bits:.2f} at most"
                for name, bits in self.scores.items()
                if bits > self.most_bits
            ),
        ]
        print(", ".join(f"{name} {bits:.2f} bits" for name, bits in self.scores.items()))
        self.next(self.promote)

    @step
    def promote(self):
        if self.troubles:
            raise NotPromotedError(f"Model {self.model['sha256'][:12]} stays what it is: {'; '.join(self.troubles)}.")
        self.promoted = {**self.model, "scores": self.scores}
        Run(f"{current.flow_name}/{current.run_id}").add_tag(PROD_READY)
        self.next(self.end)

    @step
    def end(self):
        print(f"Model {self.promoted['sha256'][:12]} is {PROD_READY}")

    def find_base(self):
        """The weights to start from; None to start from nothing."""
        if self.base == "none":
            return None
        promoted = next(iter(Flow(current.flow_name).runs(PROD_READY)), None)
        if promoted is None:
            print("No model has been promoted yet: this one starts from nothing.")
            return None
        print(f"The base is the model of {promoted.pathspec}.")
        return promoted["judge"].task["weights"].data

    def fit(self, model):
        """Train on every rank's share of the data; returns the step reached."""
        me, first = current.gang, 0
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        if me.checkpoint is not None:  # of an attempt before this one, or of the flow that is resumed
            saved = torch.load(f"{me.checkpoint}/state.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["step"]
        print(f"rank {me.rank} of {me.world_size} begins at step {first}")
        parallel = DistributedDataParallel(model)
        number = first
        for number in range(first + 1, self.steps + 1):
            x_bt, y_b = draw(self.texts["training"], batch=64, seed=number * me.world_size + me.rank)
            loss = cross_entropy(parallel(x_bt), y_b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            gangline.log({"loss": loss.item()}, step=number)
            gangline.progress(number, self.steps)
            stopping = gangline.should_stop()
            if stopping or number % 50 == 0 or number == self.steps:
                with gangline.checkpoint(number) as folder:
                    if me.rank == 0:
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}
                        torch.save(state, folder / "state.pt")
            if stopping:
                break
        return number


if __name__ == "__main__":
    FineTuneFlow()
