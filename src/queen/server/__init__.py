"""HTTP: from bytes to verbs and back."""
