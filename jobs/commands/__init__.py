"""What the `lakemq` command offers, one module per group of commands; cli.py puts them together.

Nothing heavy is imported at the top of these modules: `lakemq --help` reads them all.
"""
