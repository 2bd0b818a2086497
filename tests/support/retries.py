"""When the tests let failed jobs run again."""

IN_AN_HOUR = {"initial_interval": "PT1H", "max_interval": "PT1H", "jitter": False}
"""The retry does not come due within the test. The default second does, on a slow machine."""
