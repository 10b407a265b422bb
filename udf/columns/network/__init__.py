"""Fetches files from HTTP servers that nobody vouches for."""
