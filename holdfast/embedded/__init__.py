"""The whole cluster on one machine: a real PostgreSQL, a real NATS, every service and N agents, supervised."""
