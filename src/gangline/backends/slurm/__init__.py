"""Slurm clusters, from a login node or over SSH; see `docs/adr/0025-slurm-bridge.md`."""
