"""What can be saved of a damaged store, as rows of a new one: pure, over any source of rows."""

from topics_service.engine.repair.actions import Action, Doubts
from topics_service.engine.repair.salvage import Salvage, Saved

__all__ = ["Action", "Doubts", "Salvage", "Saved"]
