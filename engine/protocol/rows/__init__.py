"""What is stored: a module per subject turns decisions and state into rows of its tables, and such rows into state.

Both stand side by side, so that they cannot drift apart. Each lists its tables in PROJECT and RESTORE, which
`projection` puts together.
"""
