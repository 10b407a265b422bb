"""A benchmark that fits into a quarter of an hour on one card: ``python -m benchmarks --suite h100 --minutes 12``."""
