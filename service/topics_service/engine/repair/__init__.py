"""Salvage of a damaged store into the rows of a new one. Pure, over any source of rows."""

from topics_service.engine.repair.actions import Action, Uncertain
from topics_service.engine.repair.salvage import Salvage, Saved

__all__ = ["Action", "Salvage", "Saved", "Uncertain"]
