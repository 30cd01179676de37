"""Code that ranks share with their node's vault: messages and their socket, seals of shards, memory that both map."""
