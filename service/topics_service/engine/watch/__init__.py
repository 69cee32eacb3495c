"""Following many logs at once: the watch core and what it is made of (docs/contract.md, 8)."""
