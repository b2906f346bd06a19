"""What a report says and draws, gathered from all stages."""
