"""`wingbar report`: runs, their scores and all their pictures in one HTML file that needs nothing else."""
