"""The parameter server: versions of the weights, their distribution in phases with deadlines, late joiners."""
