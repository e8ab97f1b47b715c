"""Table 2 of the paper: fields of seminar announcements."""
