"""Spool files on the disk: their format, and how they are written, read and repaired."""
