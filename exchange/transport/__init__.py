"""Transport: connections, duplex streams, admission, validation of what peers send, and errors across the wire."""
