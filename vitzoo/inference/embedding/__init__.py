"""How `embed` reads its sources, divides the work, and writes its folder."""
