"""What the published streaming SDK asks of a broker."""
