"""Migrations, run by `gangline.store.migrate`."""
