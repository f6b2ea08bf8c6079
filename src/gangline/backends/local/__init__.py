"""The server's own machine: agents are processes of it, the queue hands out its devices disjointly."""
