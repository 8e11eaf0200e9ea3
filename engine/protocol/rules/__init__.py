"""What may happen: a module per subject decides its requests, folds its records, and knows what time brings.

Each lists its own in tables, which `machine` puts together: DECIDE, kind of request -> rule; EVOLVE, kind of record ->
fold; TIMERS.
"""
