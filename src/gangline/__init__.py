"""Gangline."""
