"""Metaflow is imported once, without what it warns of at its own import."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import metaflow  # noqa: F401
