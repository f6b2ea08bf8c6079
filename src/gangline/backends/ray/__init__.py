"""Ray clusters that are there, reached by their Jobs API; see `docs/adr/0045-ray-backend.md`."""
