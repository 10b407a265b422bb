"""Constraints on answers, and the grammars that enforce them token by token."""
