"""The supervisor on each node of a gang: standard library only, travels as one file."""
