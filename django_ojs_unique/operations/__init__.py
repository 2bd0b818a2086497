"""What operators do to jobs, and what HTTP clients enqueue."""
