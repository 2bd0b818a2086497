"""What operators ask of the tables: read-only, a bounded number of indexed queries, no HTML and no terminal output.

What nobody is shown is in `handlers.redaction`.
"""
