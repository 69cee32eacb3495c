"""Shows the fields of a NamedTuple or TypedDict as its signature, as of a dataclass (an extension of griffe)."""

from typing import Any

from griffe import Attribute, Class, Extension, Function, Parameter, ParameterKind, Parameters


class NamedTuples(Extension):
    """Gives each such class the constructor that it has when it runs."""

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        if not any(str(base) in ("NamedTuple", "TypedDict") for base in cls.bases):
            return
        fields = [member for member in cls.members.values() if isinstance(member, Attribute) and not _computed(member)]
        given = [
            Parameter(field.name, annotation=field.annotation, kind=_KIND, default=field.value) for field in fields
        ]
        cls.set_member("__init__", Function("__init__", parameters=Parameters(Parameter("self", kind=_KIND), *given)))


_KIND = ParameterKind.positional_or_keyword


def _computed(member: Attribute) -> bool:
    return "property" in member.labels
