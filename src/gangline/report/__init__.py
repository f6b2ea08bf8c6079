"""A run as one page, or one archive, for somebody who has no access to it. Secrets have left before anything gets here.

Must not read files or the store: `control/reporting.py` gathers what is shown.
"""
