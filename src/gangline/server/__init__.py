"""The server: HTTP over `control`, the store and the run directories, and the process that holds them together."""
