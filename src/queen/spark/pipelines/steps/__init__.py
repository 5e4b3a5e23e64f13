"""Steps of a compiled definition: what is read, joined, told apart and computed."""
