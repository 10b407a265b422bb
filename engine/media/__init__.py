"""Reads images, sounds and PDF files, in processes that can be killed: a table is untrusted input.

decode: what the rest of the package calls. processes: the pool of decoder processes. decoder_main: what runs in one of
them, with images, sounds and pdf. arrays: images that are arrays already. limits: what one cell may cost.
"""
