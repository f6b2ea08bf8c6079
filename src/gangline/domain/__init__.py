"""Spec, gang, phases, reasons and errors: pure, standard library only."""
