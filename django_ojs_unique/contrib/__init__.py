"""Contrib: the integrations with other software, each for those who install it."""
