"""With the real django-tenants, on PostgreSQL, in an environment of its own: ``python -m pytest tests_tenants``.

``OJS_TENANTS`` chooses the layout: ``shared`` (the jobs of all tenants are in one table) or ``own`` (each tenant has a
table of jobs in its schema).
"""
