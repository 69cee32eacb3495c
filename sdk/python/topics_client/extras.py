"""Packages that only some calls take."""


def missing(what: str, package: str) -> ModuleNotFoundError:
    """What to raise where a package is not installed that `what` takes."""
    return ModuleNotFoundError(f"{what} takes {package}, which is not installed: pip install {package}", name=package)
