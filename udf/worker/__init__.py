"""What runs in the processes that Daft starts."""
