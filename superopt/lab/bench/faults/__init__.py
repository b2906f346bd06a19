"""Files and stages with faults: does reading them end in one typed error, and within bounds?"""
