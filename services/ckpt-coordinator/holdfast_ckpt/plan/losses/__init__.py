"""Which losses of machines leave every shard in memory, under a job's plan and under others."""
