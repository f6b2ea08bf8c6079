"""The machine that the server runs on: agents are processes of it, its devices are handed out disjointly by the queue."""
