"""What holds machines. Each backend is a package of its own, found by its entry point, and imports no other."""
