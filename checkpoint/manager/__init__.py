"""The checkpoint manager: events in, commands out. Pure decisions."""
