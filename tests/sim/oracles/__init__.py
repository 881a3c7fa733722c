"""What must be true at the end of a run. What shows earlier is raised by `history` as it happens (O1 to
O6), or when a machine loses its power (`platters`).
"""

from tests.sim.oracles import copies, damage

ORACLES = (copies.check, damage.check)
