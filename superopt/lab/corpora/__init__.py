"""What the verifier is held against: rules and schedules that are true, and others that are wrong and look true."""
