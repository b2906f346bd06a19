"""Arrays outside of this process: placed in files that several processes map, and handed over in bundles."""
