"""What a run shows: the page, the report in Markdown, and the figures of both."""
