"""How good is an encoder: functions of frozen features and labels, with intervals. `wingbar.exam` is the command."""
