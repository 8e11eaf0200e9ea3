"""Processes: clocks, forks, exits, signals, crash points, and optional packages."""
