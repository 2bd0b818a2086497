"""Unique: what "the same job" means. Policy, fingerprint, judge, presets and job keys, in pure functions.

How a stored row holds its unique key is in `db.constraints` and `models.job`; the enqueue is in `enqueue`.
"""
