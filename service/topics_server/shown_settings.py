"""The settings as their system table shows them."""

from dataclasses import fields

from topics_server.setting_kinds import shown_value
from topics_server.settings import Settings
from topics_service.api.sql.system import SettingLine


def shown_settings(settings: Settings) -> list[SettingLine]:
    """All settings that may be given on a command line: the others are secrets, or files of them."""
    return [
        SettingLine(each.metadata["env"], shown_value(each, getattr(settings, each.name)), each.metadata["help"])
        for each in sorted(fields(settings), key=lambda each: str(each.metadata["env"]))
        if each.metadata["flag"]
    ]
