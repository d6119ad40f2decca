"""The report of kept runs: read, grouped, scored, and shown as tables, figures and a page."""
