"""Loop programs: buffers, stages over the free algebra, their semantics, simplification and printing."""
