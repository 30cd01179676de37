"""On-demand tracer: the activity of the node's rank processes, read from outside in bounded time."""
