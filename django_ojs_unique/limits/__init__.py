"""Limits: how many jobs of a key run at once or start in a time, and whose turn it is in a fair queue.

A job with limits waits at a gate (`ojs.gates`), where claims without limits do not see it. A claim looks at the jobs
that are new (`waiting`), locks the rows of their keys and counts the slots in use (`slots`), and lets the jobs that
find no slot wait at the gate of that key. Nothing here happens at an enqueue, or at the end of a run.
"""
