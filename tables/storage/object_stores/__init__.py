"""Objects on disks and in object stores."""
