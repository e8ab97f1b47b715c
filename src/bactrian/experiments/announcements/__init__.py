"""Made-up announcements tagged: the second task of ``bactrian demo``."""
