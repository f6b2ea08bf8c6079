"""Train a small GPT on the texts of Python's own help, byte by byte.

    python train.py                                                    # alone, on one process
    gangline submit --nodes 2 --procs-per-node 2 --follow train.py     # the same file as a gang of four

Everything that Gangline needs to know is said in seven calls, each of which also works without Gangline:
`current`, `latest_checkpoint`, `log`, `progress`, `phase`, `checkpoint` and `should_stop`.
"""

from __future__ import annotations

import argparse
import math
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import gangline

VOCAB = 256  # bytes


class Block(nn.Module):
    """One transformer layer: attention over what came before, then a small network, each added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mlp[2].weight)

    def forward(self, x_btc: Tensor) -> Tensor:
        batch, length, width = x_btc.shape
        qkv = self.qkv(self.norm1(x_btc)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x_btc = x_btc + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        return x_btc + self.mlp(self.norm2(x_btc))


class GPT(nn.Module):
    """Bytes in, the scores of every next byte out."""

    def __init__(self, *, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCAB, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        for weight in (self.bytes.weight, self.places.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x_bt: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.bytes(x_bt) + self.places.weight[: x_bt.shape[1]])))


def load_text() -> tuple[Tensor, Tensor]:
    """Training and held-out bytes; every tenth topic, by name, is held out."""
    names = sorted(topics)
    held_out = "\n".join(topics[name] for name in names[::10])
    training = "\n".join(topics[name] for name in names if name not in names[::10])
    return tuple(torch.tensor(list(text.encode()), dtype=torch.uint8) for text in (training, held_out))


def draw(text: Tensor, *, batch: int, context: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random windows of the text and the bytes that follow; the same seed draws the same windows."""
    starts = torch.randint(len(text) - context, (batch, 1), generator=torch.Generator().manual_seed(seed))
    windows = text[starts + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, x_bt: Tensor, y_bt: Tensor) -> Tensor:
    """Mean cross-entropy, in nats a byte; the windows go where the model is."""
    device = next(model.parameters()).device
    return cross_entropy(model(x_bt.to(device)).flatten(0, 1), y_bt.to(device).flatten())


def learning_rate(step: int, total: int, peak: float) -> float:
    """A short climb, then a cosine down to a tenth of the peak."""
    return peak * min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / total))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints and held-out losses")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    gang = gangline.current()  # rank 0 of a gang of one when nothing else is known
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    device = pick_device(gang.local_rank)
    if gang.world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = GPT(width=args.width, layers=args.layers, heads=4, context=args.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    first_step = restore(model, optimizer)
    print(f"rank {gang.rank} of {gang.world_size}, attempt {gang.attempt}: starting at step {first_step}")
    train(model, optimizer, args=args, first_step=first_step)

    if dist.is_initialized():
        dist.destroy_process_group()


def pick_device(local_rank: int) -> torch.device:
    """A GPU of this rank's own where the node has any, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def restore(model: GPT, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest complete checkpoint, if there is one; returns the step to go on from."""
    found = gangline.latest_checkpoint()  # the same on every rank
    if found is None:
        return 0
    state = torch.load(found.path / "state.pt", map_location=model.head.weight.device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return found.step


def train(model: GPT, optimizer: torch.optim.Optimizer, *, args: argparse.Namespace, first_step: int) -> None:
    gang = gangline.current()
    training, held_out = load_text()
    parallel = DistributedDataParallel(model) if gang.world_size > 1 else model
    if first_step == 0:
        evaluate(model, held_out, step=0, context=args.context)
    started = time.perf_counter()
    for step in range(first_step, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        # What a rank reads follows from the step and the rank alone, so a resumed run reads exactly what it would have.
        seed = (args.seed * args.steps + step) * gang.world_size + gang.rank
        loss = loss_of(parallel, *draw(training, batch=args.batch, context=args.context, seed=seed))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        done = step + 1
        tokens_per_s = (
            (done - first_step) * gang.world_size * args.batch * args.context / (time.perf_counter() - started)
        )
        gangline.log({"loss": loss.item(), "tokens_per_s": tokens_per_s}, step=done)
        gangline.progress(done, args.steps)
        if done % 10 == 0:
            print(f"step {done} loss {loss.item():.3f}")
        stopping = gangline.should_stop()  # the same answer on every rank, at the same step
        if done % args.save_every == 0 or done == args.steps or stopping:
            evaluate(model, held_out, step=done, context=args.context)
            save(model, optimizer, step=done)
        if stopping:
            print(f"asked to stop; step {done} is saved")
            return


def evaluate(model: GPT, held_out: Tensor, *, step: int, context: int) -> None:
    """Log the loss on text that is never trained on: always the same 64 windows."""
    if gangline.current().rank != 0:
        return
    with torch.no_grad(), gangline.phase("evaluating"):
        loss = loss_of(model, *draw(held_out, batch=64, context=context, seed=0)).item()
    gangline.log({"heldout_loss": loss}, step=step)
    print(f"step {step} held-out loss {loss:.3f}")


def save(model: GPT, optimizer: torch.optim.Optimizer, *, step: int) -> None:
    """Every rank comes here; rank 0, whose weights all share, writes. The checkpoint counts once all have left."""
    with gangline.checkpoint(step) as folder:
        if gangline.current().rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "state.pt")


if __name__ == "__main__":
    main()
