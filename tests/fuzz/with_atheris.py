"""A decoder under atheris, which looks for inputs that reach new code: `pip install atheris`, then

    PYTHONPATH=tests python tests/fuzz/with_atheris.py "row of a log" [FOLDER WITH INPUTS] [-max_total_time=60]

The samples of the target are where it starts. What fails is left as crash-* in the folder that it was started in.
"""

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["topics_service", "topics_gateway", "topics_kafka", "topics_client"]):
    from fuzz.targets import TARGETS


def main() -> None:
    name, *arguments = sys.argv[1:] or ["?"]
    target = next((target for target in TARGETS if target.name == name), None)
    if target is None:
        sys.exit(f"which of {', '.join(sorted(target.name for target in TARGETS))}?")
    with tempfile.TemporaryDirectory() as folder:
        for i, sample in enumerate(target.samples):
            (Path(folder) / f"sample-{i}").write_bytes(sample)
        atheris.Setup([sys.argv[0], *arguments, folder], target.feed)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
