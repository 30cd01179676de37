"""The on-demand tracer: what the processes of a node's ranks are doing, from outside and in bounded time."""
