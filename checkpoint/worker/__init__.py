"""Workers: processes that run actors of loads and jobs under a coordinator."""
