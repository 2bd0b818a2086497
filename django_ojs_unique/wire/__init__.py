"""Jobs in the words of the HTTP binding: read, and described as a schema; HTTP itself is `api`."""
