"""Shared by the commands: options, printing, times, progress, and their documentation."""
