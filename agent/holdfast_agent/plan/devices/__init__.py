"""The devices of a rank: which GPUs it sees, and the processors near its own."""
