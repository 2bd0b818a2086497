"""Bodies, headers and errors in the format of the HTTP binding."""
