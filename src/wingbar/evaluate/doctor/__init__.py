"""The data doctor: what is wrong with a set of images, found before anything is trained on it."""

from typing import TYPE_CHECKING

from wingbar.lazy import lazily

if TYPE_CHECKING:
    from wingbar.evaluate.doctor.check import check as check
    from wingbar.evaluate.doctor.report import Entry as Entry
    from wingbar.evaluate.doctor.report import Pair as Pair
    from wingbar.evaluate.doctor.report import Report as Report
    from wingbar.evaluate.doctor.report import SplitFacts as SplitFacts
    from wingbar.evaluate.doctor.report import Verdict as Verdict

lazily(__name__)
