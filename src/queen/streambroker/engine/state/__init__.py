"""What a stream is: entries, groups, and the events that change them."""
