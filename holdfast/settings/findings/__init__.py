"""Sections of the settings with the limits from which the analyzer emits a finding, and what it measures for them."""
