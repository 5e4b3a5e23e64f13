"""What operators switch, hand out and look after."""
