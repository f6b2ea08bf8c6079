"""One file a migration, named by its number; `gangline.store.migrate.REVISIONS` lists them."""
