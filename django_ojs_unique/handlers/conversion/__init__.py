"""Arguments that JSON does not have, such as dates and model instances: ``@job(..., convert=True)``."""
