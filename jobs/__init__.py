"""Thin entry points: jobs for spark-submit, the `lakemq` command, and DAGs for schedulers (`dags/`).

Do not name a file here like a module of the standard library. spark-submit puts this folder first on the path.
"""
