"""The commands of `lakemq`, one module per group; cli.py puts them together.

Import nothing heavy at the top of these modules: `lakemq --help` loads them all.
"""
