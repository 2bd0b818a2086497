"""The worker: a process that claims, runs, finalizes and maintains. What happens to one job is in `execution`.

::

    Supervisor             several processes
    └ Worker (loop)        one thread: claims, keeps leases, counts; `control` has what others tell it
      ├ Poller, Promoter   when to look, and where (`queues`); wakened by Listener
      ├ Claimer            claims for free places, from where jobs begin (`fronts`), into ClaimedRuns
      ├ pools              ThreadPool, EventLoopPool: run handlers, and tell the loop
      ├ Finalizer          a thread: stores outcomes, and tells the loop
      ├ Housekeeper        a thread: what one worker does for all, by a `timetable`
      ├ threads            tell when they die
      └ outages            what a failing database means

    remote, remote_worker, heartbeat    workers that claim over HTTP, and the row of each worker
"""

from .hints import unfinished
from .loop import Worker
from .queues import QueueFilter
from .summary import Summary
from .supervisor import Supervisor

__all__ = ["QueueFilter", "Summary", "Supervisor", "Worker", "unfinished"]
