"""Run-directory layout, journals, logs, checkpoints and the mirror protocol: standard library only."""
