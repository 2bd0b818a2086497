"""Handlers: their declaration and registry, typed args, redaction, and what a job carries to its runs.

What calls them is in `execution`.
"""
