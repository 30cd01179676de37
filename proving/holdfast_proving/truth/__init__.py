"""The truth: which faults there are, where, since when, until when."""
