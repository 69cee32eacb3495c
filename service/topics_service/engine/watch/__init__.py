"""Following many logs at once: the watch core and its parts (docs/contract.md, 8)."""
