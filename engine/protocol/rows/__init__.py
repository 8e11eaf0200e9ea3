"""Rows: one module per subject turns decisions and state into rows of its tables, and such rows into state.

Both directions stand side by side, so that they do not drift apart. Each module lists its tables in PROJECT and
RESTORE, which `projection` puts together.
"""
