"""The body of a step on two ranks, whoever starts them: they meet over gloo and add up once."""

import os

import torch
import torch.distributed as dist


def meet() -> float:
    """Meet by what the environment says."""
    dist.init_process_group("gloo")
    value = torch.ones(1) * (1 + int(os.environ["RANK"]))
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item()
