"""What a format and its patterns may cost: limits of size and work, and a process that can be killed."""
