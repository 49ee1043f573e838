"""Standard Flight interface: descriptors, tickets, planning of reads, puts, and the reader of a flight."""
