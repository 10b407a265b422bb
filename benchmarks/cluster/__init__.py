"""Simulates many engines that answer one table: which policy keeps prefixes together and the load even."""
