"""Work on a region that no driver runs: standing in for its driver, trimming, sweeping staged rows."""
