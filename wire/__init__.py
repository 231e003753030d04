"""What travels: ids, envelope, secrets, signatures, header profiles, retry schedules."""
