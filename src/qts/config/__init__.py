"""One settings file and the environment become one frozen, checked Config."""

from qts.config.decode import Origin
from qts.config.load import Effective, load, resolve
from qts.config.render import describe, render, template
from qts.config.schema import Config, Setting, settings_of

__all__ = [
    "Config",
    "Effective",
    "Origin",
    "Setting",
    "describe",
    "load",
    "render",
    "resolve",
    "settings_of",
    "template",
]
