"""Jobs on MIN to MAX nodes: the sizes that they can run on, and the nodes that they take in while they train."""
