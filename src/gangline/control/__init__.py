"""What the server does with runs: commands of people, and reconcilers that load, decide and apply."""
