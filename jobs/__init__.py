"""Thin entry points: for spark-submit, for the `lakemq` command, for schedulers (`dags/`).

No file here may be named like a module of the standard library: spark-submit puts this folder first on the
path.
"""
