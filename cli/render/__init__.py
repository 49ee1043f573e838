"""Rendering: how people and programs are shown the facts."""
