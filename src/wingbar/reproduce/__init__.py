"""`wingbar reproduce`: the paper's tables beside ours, cell by cell, to be stopped and gone on with at any time."""
