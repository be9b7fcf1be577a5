"""`wingbar submit`: a command as a job of SLURM, which goes on by itself when its time is up or others came first."""
