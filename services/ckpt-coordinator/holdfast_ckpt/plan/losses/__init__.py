"""The losses of machines that leave every shard in memory, under a job's plan and under other plans."""
