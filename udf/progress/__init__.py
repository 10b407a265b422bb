"""Shows how far a query is, while it runs."""
