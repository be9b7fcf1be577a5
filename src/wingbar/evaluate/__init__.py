"""`wingbar evaluate`: encoders of any origin sit the protocols of `wingbar.metrics` on one data set."""

from typing import TYPE_CHECKING

from wingbar.lazy import lazily

if TYPE_CHECKING:
    from wingbar.evaluate.options import Evaluate as Evaluate
    from wingbar.evaluate.protocols import PROTOCOLS as PROTOCOLS
    from wingbar.evaluate.sitting import examine as examine
    from wingbar.evaluate.subject import Subject as Subject

lazily(__name__)
