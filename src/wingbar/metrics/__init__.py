"""How good is an encoder: functions of frozen features and labels, with intervals; the command is in `evaluate`."""
