"""Values: requests, results, records and state, one module per subject. `state` composes the state of all subjects."""
