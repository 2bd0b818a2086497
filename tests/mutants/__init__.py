"""Break the package in one place at a time, and see that a test fails: ``make mutants``.

``mutants.toml`` has the places: each mutant is one change of one file that breaks one guarantee, with the tests that
must fail then. ``runner`` makes the changes in a copy of the repository, never in the repository itself.
"""
