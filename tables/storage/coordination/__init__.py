"""How processes find and hear each other: steps, letters, lines, locks and heartbeats."""
