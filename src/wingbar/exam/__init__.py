"""`wingbar evaluate`: encoders of any origin sit the protocols of `wingbar.evaluate` on one data set."""

from typing import TYPE_CHECKING

from wingbar.lazy import lazily

if TYPE_CHECKING:
    from wingbar.exam.options import Evaluate as Evaluate
    from wingbar.exam.protocols import PROTOCOLS as PROTOCOLS
    from wingbar.exam.sitting import examine as examine
    from wingbar.exam.subject import Subject as Subject
else:
    lazily(
        __name__,
        {"options": "Evaluate", "protocols": "PROTOCOLS", "sitting": "examine", "subject": "Subject"},
    )
