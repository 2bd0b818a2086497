"""Integrations with other software. Each one needs the package that it integrates."""
