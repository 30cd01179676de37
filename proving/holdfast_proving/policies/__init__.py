"""Policies: settings, and functions of production that are replaced by others."""
