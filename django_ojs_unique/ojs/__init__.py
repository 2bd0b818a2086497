"""The specification itself: pure functions and values, no Django and no database.

Everything here is importable and testable without a configured project; the clock is always passed in.
"""
