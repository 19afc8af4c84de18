"""`vitzoo bench`: the speed of the ways to compute the outputs of one network, side by side."""
