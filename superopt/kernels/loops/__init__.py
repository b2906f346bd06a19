"""Loop programs: buffers, stages over the free algebra, their meaning, simplification and print."""
