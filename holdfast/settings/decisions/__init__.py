"""Sections of the settings with the limits from which the controller decides what to do after a failure."""
