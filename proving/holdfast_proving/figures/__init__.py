"""The papers' figures, computed by production code where there is some, beside the papers' numbers."""
