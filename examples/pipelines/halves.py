"""A small pipeline: prepare data, train as a gang with checkpoints, evaluate by class, join.

python halves.py run
python halves.py run --steps 400 --with card
python halves.py resume            # goes on where it failed: at a checkpoint, if that was in the training
"""

import numpy as np
import torch
import torch.distributed as dist
from metaflow import FlowSpec, Parameter, current, gang, retry, step

import gangline

CLASSES = ("left", "right", "top", "bottom")


def draw(seed, size, only=None):
    """Pictures of 8x8 with a bright half, and which half it is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASSES), (size,), generator=generator)
    if only is not None:
        labels[:] = CLASSES.index(only)
    pictures = torch.rand(size, 8, 8, generator=generator)
    halves = (np.s_[:, :4], np.s_[:, 4:], np.s_[:4], np.s_[4:])
    for picture, label in zip(pictures, labels, strict=True):
        picture[halves[label]] += 0.5
    return pictures.flatten(1), labels


class HalvesFlow(FlowSpec):
    steps = Parameter("steps", help="Steps of training.", default=100)

    @step
    def start(self):
        self.pictures, self.labels = (part.numpy() for part in draw(seed=1, size=512))
        self.next(self.train)

    @retry(times=1, minutes_between_retries=0)
    @gang(procs_per_node=2, max_restarts=3, hang_timeout_s=300)
    @step
    def train(self):
        dist.init_process_group("gloo")
        model = torch.nn.Linear(64, len(CLASSES))
        begin = 0
        if current.gang.checkpoint is not None:
            saved = torch.load(f"{current.gang.checkpoint}/model.pt")
            model.load_state_dict(saved["model"])
            begin = saved["step"]
        print(f"rank {current.gang.rank} of {current.gang.world_size} begins at step {begin}")
        mine = slice(current.gang.rank, None, current.gang.world_size)
        pictures, labels = torch.from_numpy(self.pictures)[mine], torch.from_numpy(self.labels)[mine]
        trained = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number in range(begin + 1, self.steps + 1):
            loss = torch.nn.functional.cross_entropy(trained(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            gangline.log({"loss": loss.item()}, step=number)
            must_end = gangline.should_stop()
            if must_end or number % 25 == 0 or number == self.steps:
                with gangline.checkpoint(step=number) as folder:
                    if current.gang.rank == 0:
                        torch.save({"model": model.state_dict(), "step": number}, folder / "model.pt")
            if must_end:
                break
        dist.destroy_process_group()
        self.loss, self.checkpoint = loss.item(), current.gang.checkpoint_uri
        self.classes = list(CLASSES)
        self.next(self.evaluate, foreach="classes")

    @step
    def evaluate(self):
        model = torch.nn.Linear(64, len(CLASSES))
        model.load_state_dict(torch.load(self.checkpoint.removeprefix("file://") + "/model.pt")["model"])
        pictures, labels = draw(seed=2, size=100, only=self.input)
        self.score = (self.input, (model(pictures).argmax(1) == labels).float().mean().item())
        self.next(self.join)

    @step
    def join(self, inputs):
        self.merge_artifacts(inputs, exclude=["score"])
        self.scores = dict(one.score for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        print(", ".join(f"{name} {score:.0%}" for name, score in self.scores.items()))
        assert min(self.scores.values()) > 0.9, "not good enough to promote"


if __name__ == "__main__":
    HalvesFlow()
