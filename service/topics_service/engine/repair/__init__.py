"""What can be saved of a damaged store, as rows of a new one: pure, over any source of rows."""

from topics_service.engine.repair.actions import Action, Uncertain
from topics_service.engine.repair.salvage import Salvage, Saved

__all__ = ["Action", "Salvage", "Saved", "Uncertain"]
