"""The soak: workers and producers run for half an hour while a saboteur disturbs them; then SQL judges what happened.

``python -m tests.soak --help`` says how. `producer` and `jobs` write down what they were told and what they ran, in
`logs`; triggers write down each change of a job's row (`history`); `saboteur` says what it did; `judge` compares.

``--siege`` is another five minutes: handlers that leave things behind (`leaving`), and faults of processes only.
"""

NARROW = "narrow"
"""A queue with a limit, whose row each claim writes."""
RETRY = {"initial_interval": "PT0.05S", "backoff_strategy": "constant", "jitter": False, "max_attempts": 100}
PERIOD_SECONDS = 3
"""The period of the type ``unique.period``."""
LIMIT_SECONDS = 0.5
"""The time limit of the types ``limit.*``."""
