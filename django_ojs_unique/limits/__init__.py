"""Limits: how many jobs of a partition run at once or start in a time, and whose turn it is in a fair queue.

A job with limits is blocked (`ojs.blocking`), so claims without limits do not see it. A claim looks at the jobs that
are new (`waiting`), locks the rows of their partitions and counts the slots in use (`slots`), and lets the jobs that
find no slot be blocked by that partition. Nothing here happens at an enqueue, or at the end of a run.
"""
