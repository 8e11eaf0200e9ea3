"""What all who work on a namespace share: its settings, how it is opened and loaded, data files, time, crash points."""
