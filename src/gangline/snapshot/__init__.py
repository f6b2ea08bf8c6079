"""Pack, restore and compare source trees by content. See docs/explanation/snapshots.md."""
