"""Sections of the settings that say when the analyzer finds something."""
