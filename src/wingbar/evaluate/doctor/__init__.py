"""The data doctor: what is wrong with a set of images, found before anything is trained on it."""

from typing import TYPE_CHECKING

from wingbar.lazy import lazily

if TYPE_CHECKING:
    from wingbar.evaluate.doctor.check import check as check
    from wingbar.evaluate.doctor.report import DataReport as DataReport
    from wingbar.evaluate.doctor.report import DataVerdict as DataVerdict
    from wingbar.evaluate.doctor.report import ImagePair as ImagePair
    from wingbar.evaluate.doctor.report import ListedImage as ListedImage
    from wingbar.evaluate.doctor.report import SplitFacts as SplitFacts

lazily(__name__)
