"""Tables in files: what is read, and what each format of a file holds."""
