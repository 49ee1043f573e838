"""Retention: how long rows and logs are kept, and the holds that keep them longer."""
