"""Fit a sine with a small network, on one process or on a gang.

python train.py                                                    # alone
gangline submit --nodes 2 --procs-per-node 2 --follow train.py     # four ranks, here or on a cluster
"""

import argparse

import gangline
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def pick_device(local_rank: int) -> torch.device:
    """A GPU of this rank's own where the node has any, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=1e-2)
    options = parser.parse_args()

    run = gangline.current()
    device = pick_device(run.local_rank)
    if run.world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    first_step = 0
    if (saved := gangline.latest_checkpoint()) is not None:  # a restart, or `gangline resume`
        state = torch.load(saved.path / "state.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]
    net = DistributedDataParallel(model) if dist.is_initialized() else model

    torch.manual_seed(1000 * first_step + run.rank)  # every rank draws its own data
    for step in range(first_step + 1, options.steps + 1):
        x = torch.rand(256, 1, device=device) * 6 - 3
        loss = nn.functional.mse_loss(net(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        gangline.log({"loss": loss.item()}, step=step)
        gangline.progress(step, options.steps)
        stopping = gangline.should_stop()
        if step % 100 == 0 or step == options.steps or stopping:
            with gangline.checkpoint(step) as folder:
                if run.rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, folder / "state.pt")
            if run.rank == 0:
                print(f"step {step}: loss {loss.item():.4f}, saved")
        if stopping:
            break
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
