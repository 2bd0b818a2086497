"""What happens to a stored job: claim, run, finalize, and the leases meanwhile."""
