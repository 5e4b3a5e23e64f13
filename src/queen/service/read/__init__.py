"""Reading without consuming: in bulk, by time, one by one."""
