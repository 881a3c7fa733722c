"""Work on a region that no driver runs: savepoints, trimming, sweeping staged rows."""
