"""Databases: the only place where a vendor is asked for. What a job means is not here, but in `unique` and `enqueue`.

::

    dialects        which dialect a database has
      dialect       its verbs: insert, find, lock, claim, complete …, as every database can do them
        postgresql, mysql, sqlite    what one vendor does in another way
          inserts   the SQL of inserts and of looks for duplicates
          fast/     kept cursors, prepared statements, rows without `Model.__init__`

    fields, constraints    what a model needs of a database; the promise of uniqueness
    capabilities           how strong that promise is here
    characters             the characters that a database or a column cannot store
    holding, updates, locking, index_scan, transactions, clock, sizes, args_index    helpers for other statements
    sessions, statements, session_limits    what jobs and workers leave in the session of a connection
"""
