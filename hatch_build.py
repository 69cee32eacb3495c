"""What a build checks: hatchling leaves out of a wheel, in silence, whatever is listed and not there."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig


class CustomBuildHook(BuildHookInterface[WheelBuilderConfig]):
    """Refuses to build a wheel that would lack a package or a licence that pyproject.toml lists."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises FileNotFoundError, with all that is missing."""
        listed = [*self.build_config.packages, *self.metadata.config["project"]["license-files"]]
        missing = [name for name in listed if not Path(self.root, name).exists()]
        if missing:
            raise FileNotFoundError(f"not here, but listed in pyproject.toml: {', '.join(missing)}")
