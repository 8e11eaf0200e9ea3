"""Load the state of a namespace: the tables at a watermark, and the steps after it."""
