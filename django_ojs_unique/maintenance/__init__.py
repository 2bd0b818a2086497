"""What happens to jobs as time passes: promote, rescue, expire, prune, cron, superseded retries."""
