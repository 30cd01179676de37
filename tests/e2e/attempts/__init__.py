"""What each position could try against a cluster, and what it gets."""
