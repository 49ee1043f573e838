"""Subscriptions: a table's rows, then its changes, pushed to readers at their own pace."""
