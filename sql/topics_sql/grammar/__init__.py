"""Statements from tokens, by recursive descent: one module for each kind of statement."""
