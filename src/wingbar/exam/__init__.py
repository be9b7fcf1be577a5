"""`wingbar evaluate`: encoders of any origin sit the protocols of `wingbar.evaluate` on one data set."""

from wingbar.exam.command import examine
from wingbar.exam.options import Evaluate
from wingbar.exam.protocols import PROTOCOLS
from wingbar.exam.subject import Subject

__all__ = ["PROTOCOLS", "Evaluate", "Subject", "examine"]
