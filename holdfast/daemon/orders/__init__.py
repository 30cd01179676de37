"""Orders to nodes: the keys that sign them, and the repair of those on the bus."""
