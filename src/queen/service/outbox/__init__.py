"""The outbox: messages that are stored now and appended later, by SQL producers and schedules."""
