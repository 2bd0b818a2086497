"""System checks, one module for each subject; `AppConfig.ready` imports them. Their ids never change.

A hint says all that there is to do: an installed package has no pages to refer to. `jobs verify`, which looks into the
rows, is in `operations.integrity`.
"""

TAG = "ojs_unique"
"""The tag of the checks that need neither the URLs nor a database: all that `jobs` and `prunejobs` wait for."""
