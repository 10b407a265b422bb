"""Images and diagrams."""
