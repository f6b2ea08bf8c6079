"""Pure policy of the queue: which waiting gangs start now, and why the others wait."""
