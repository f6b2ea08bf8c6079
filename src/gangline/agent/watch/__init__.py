"""The hang watchdog: signs of life, stacks, who waits where, and what follows. Standard library only.

sampling   what a node reads of its ranks: steps, phases, log growth, CPU time, bytes, states   (touches the world)
vigil      from these to "it moves", "look closer" or "it hangs"                                  (pure)
taking     stacks of a node's ranks, by the injected handler or by py-spy                          (touches the world)
frames     the texts of both as frames                                                             (pure)
places     from frames to "waits in all_reduce (train.py:41)", groups, and the rank that is missing (pure)
flight     what NCCL's flight recorder left, read without trusting it                               (pure)
nodewatch  a node's part: samples, takes stacks when it is asked
watchdog   the leader's part: asks, judges, acts
"""
