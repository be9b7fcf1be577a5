"""The data doctor: what is wrong with a set of images, found before anything is trained on it."""

from wingbar.doctor.check import check
from wingbar.doctor.report import Entry, Pair, Report, SplitFacts, Verdict

__all__ = ["Entry", "Pair", "Report", "SplitFacts", "Verdict", "check"]
