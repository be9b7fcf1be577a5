"""`wingbar show`: what runs and encoders have to show, gathered; `wingbar.show.figures` draws it."""
