"""Rules: one module per subject decides its requests, applies its records to the state, and lists its timers.

Each module of a subject has three tables, which `machine` puts together: DECIDE maps a kind of request to its rule,
EVOLVE maps a kind of record to the function that applies it, and TIMERS lists what time alone brings about.
"""
