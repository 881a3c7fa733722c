"""`./run chaos`: a region on real Spark and real servers, whose workers, servers and driver are killed."""
