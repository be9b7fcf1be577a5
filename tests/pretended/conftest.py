"""What work.py does changes torch for good: it is started by itself, never imported."""

collect_ignore = ["work.py"]
