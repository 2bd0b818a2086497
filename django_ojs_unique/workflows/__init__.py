"""Workflows: from a definition to rows, and from the ends of jobs to the next ones (OJS workflows)."""
