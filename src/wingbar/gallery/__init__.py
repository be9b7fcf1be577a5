"""`wingbar show`: what runs and encoders have to show, gathered; `wingbar.show` draws it."""
