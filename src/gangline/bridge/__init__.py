"""The far side of a Slurm pool: one program on the login node, asked over its stdin. Standard library only."""
