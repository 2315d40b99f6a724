"""Strategies and the five steps around them: extract, transform, evaluate, decide, act."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.pipeline.act import act as act
from qts.pipeline.decide import decide as decide
from qts.pipeline.evaluate import evaluate as evaluate
from qts.pipeline.extract import extract as extract
from qts.pipeline.transform import transform as transform

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
