"""The protos, compiled, with their comments."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import google.api.annotations_pb2
import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

# Numbers of the fields that a path into a file's source goes through: descriptor.proto, FileDescriptorProto and others.
MESSAGE, ENUM, SERVICE = 4, 5, 6
METHOD = FIELD = VALUE = 2
_PACKAGES: Final = Path(google.api.annotations_pb2.__file__).parents[2]
_WELL_KNOWN: Final = Path(grpc_tools.__file__).parent / "_proto"


class ProtoFile:
    """A .proto file, and what its comments say."""

    def __init__(self, descriptor: FileDescriptorProto) -> None:
        self.descriptor = descriptor
        self.name = descriptor.name.rpartition("/")[2].removesuffix(".proto")
        self._comments = {
            tuple(place.path): place.leading_comments
            for place in descriptor.source_code_info.location
            if place.leading_comments
        }

    def comment(self, *path: int) -> list[str]:
        """The paragraphs of the comment above what lies at `path`, each on one line."""
        text = "\n".join(line.strip() for line in self._comments.get(path, "").splitlines())
        return [" ".join(part.split("\n")) for part in text.strip().split("\n\n")] if text.strip() else []


def compiled(folder: Path) -> Iterator[ProtoFile]:
    """Every file of `topics.v1` below `folder`, in order of name. Raises RuntimeError if they can't be compiled."""
    sources = sorted(folder.glob("topics/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "protos"
        _compile([f"-I{folder}", f"-I{_PACKAGES}", f"-I{_WELL_KNOWN}"], sources, result)
        for descriptor in FileDescriptorSet.FromString(result.read_bytes()).file:
            yield ProtoFile(descriptor)


def _compile(includes: Sequence[str], sources: Sequence[Path], result: Path) -> None:
    options = [f"--descriptor_set_out={result}", "--include_source_info"]
    if protoc.main(["protoc", *includes, *options, *map(str, sources)]) != 0:
        raise RuntimeError("the protos do not compile; protoc has said why")
