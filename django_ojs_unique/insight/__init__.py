"""What operators ask of the tables: read-only, in a bounded number of indexed queries, and without a surface."""
