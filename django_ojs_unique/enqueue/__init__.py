"""Enqueue: from a caller's arguments to one row, or to the reason why nothing is stored."""
