"""SQL, and nothing else: functions over a connection, no policy, no commit."""
