"""What a rank and its node's vault share: messages and their socket, seals of shards, memory that both map."""
