"""Shared by all processes of a namespace: settings, opening and loading, data files, time, crash points."""
