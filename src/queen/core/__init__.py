"""Pure rules: no I/O, no clock of their own. Everything here can be tested with plain values."""
