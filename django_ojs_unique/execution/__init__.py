"""What happens to a stored job: claim, run, settle, and the leases meanwhile."""
