"""Lines of ranks and of the kernel that mean something: by which patterns, and how often they are reported."""
