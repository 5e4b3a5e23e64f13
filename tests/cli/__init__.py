"""The commands, as users and scripts run them."""
