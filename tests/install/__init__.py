"""What each extra brings is enough, what it does not bring is told, and the README is right."""
